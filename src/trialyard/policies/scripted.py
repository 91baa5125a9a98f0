"""Policies without a model: they say what they were told to, for tests and baselines."""

from collections.abc import Sequence

from trialyard.core.errors import ConfigError, PolicyError
from trialyard.core.policy import Completion, Message, Sampling


class ScriptedPolicy:
    """Says `outputs` in order, one for each turn, and repeats the last one.

    The turn is read off the conversation (how often the assistant has spoken), so one
    policy serves many rollouts at once. It has no tokens. The reference policy says a
    task's solution, the no-op policy ``[""]``.
    """

    def __init__(self, outputs: Sequence[str]) -> None:
        if not outputs:
            raise ConfigError("a scripted policy needs at least one output")
        self._outputs = tuple(outputs)
        self._closed = False

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        if self._closed:
            raise PolicyError("the policy is closed; make a new one")
        turn = sum(message.role == "assistant" for message in messages)
        return Completion(self._outputs[min(turn, len(self._outputs) - 1)], "stop")

    async def close(self) -> None:
        self._closed = True
