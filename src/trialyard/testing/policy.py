"""A trainable policy without a model, for tests of whatever drives one.

Tokens are the bytes of the text, 256 begins a message of the assistant and 257 ends
it, so prompts continue each other as those of a real policy do. The "weights" are any
bytes; what is said comes from a function of the conversation and the sampling.
"""

import math
from collections.abc import Callable, Sequence

from trialyard.core.errors import ContextOverflow, PolicyError
from trialyard.core.policy import Completion, Message, Sampling, VersionSpan

SPEAK, END = 256, 257
TOKEN_LOGPROB = math.log(0.5)

Say = Callable[[Sequence[Message], Sampling], str]


class FakePolicy:
    """Implements `TrainablePolicy`. `faults` are raised one by one before any answer."""

    def __init__(
        self,
        say: Say,
        *,
        max_positions: int = 4096,
        version: int = 0,
        faults: Sequence[PolicyError] = (),
    ) -> None:
        self._say = say
        self._max_positions = max_positions
        self._version = version
        self._faults = list(faults)
        self._closed = False
        self.loaded: list[bytes] = []
        self.busy_s = 0.0

    @property
    def version(self) -> int:
        return self._version

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        if self._closed:
            raise PolicyError("the policy is closed; make a new one")
        if self._faults:
            raise self._faults.pop(0)
        prompt = fake_prompt(messages)
        room = self._max_positions - len(prompt)
        if room < 1:
            raise ContextOverflow(f"the prompt has {len(prompt)} tokens of {self._max_positions}")
        whole = [*self._say(messages, sampling).encode(), END]
        output = tuple(whole[: min(room, sampling.max_tokens)])
        spoken = bytes(token for token in output if token != END)
        return Completion(
            text=spoken.decode("utf-8", "replace"),
            finish="stop" if output[-1] == END else "length",
            prompt_ids=prompt,
            output_ids=output,
            logprobs=(TOKEN_LOGPROB if sampling.temperature else 0.0,) * len(output),
            versions=(VersionSpan(self._version, len(output)),),
        )

    async def load(self, weights: bytes, version: int) -> None:
        self.loaded.append(weights)
        self._version = version

    async def close(self) -> None:
        self._closed = True


def fake_prompt(messages: Sequence[Message]) -> tuple[int, ...]:
    """Tokens of a conversation up to where the assistant speaks next."""
    ids: list[int] = []
    for message in messages:
        if message.role == "assistant":
            ids.append(SPEAK)
            ids += message.content.encode() if message.token_ids is None else message.token_ids
            ids += [] if ids[-1] == END else [END]
        else:
            ids += message.content.encode()
    return (*ids, SPEAK)
