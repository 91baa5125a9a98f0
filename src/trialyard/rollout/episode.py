"""One episode: a policy works on a task in one box, turn by turn, within its budget.

An `Episode` owns the conversation of one attempt. It keeps the tokens exactly as the
policy saw and sampled them; whatever ends it, the turns so far are in `turns`.
"""

import asyncio
from dataclasses import dataclass, field

from trialyard.core.clock import Clock
from trialyard.core.errors import ContextOverflow
from trialyard.core.policy import Completion, Message, Policy, Sampling
from trialyard.core.sandbox import Sandbox
from trialyard.core.task import Task
from trialyard.core.trajectory import StopReason, Turn
from trialyard.rollout.tools import Observation, Tool


@dataclass
class Episode:
    """State of one attempt. `run` fills `turns` and returns why it ended."""

    task: Task
    policy: Policy
    tool: Tool
    clock: Clock
    sampling: Sampling
    turns: list[Turn] = field(default_factory=list)
    _messages: list[Message] = field(default_factory=list)
    _sequence: list[int] = field(default_factory=list)
    """Tokens of the current branch so far, as the policy saw them."""

    async def run(self, sandbox: Sandbox) -> StopReason:
        """Play until done or out of budget. Raises `SandboxError` or `PolicyError`."""
        try:
            async with asyncio.timeout(self.task.spec.agent.timeout_s):
                return await self._play(sandbox)
        except TimeoutError:
            return StopReason.TIME

    async def _play(self, sandbox: Sandbox) -> StopReason:
        spec = self.task.spec.agent
        context = self.tool.opening(self.task)
        tokens_left = spec.max_tokens
        for _ in range(spec.max_turns):
            self._messages.append(Message("user", context))
            budget = min(spec.max_tokens_per_turn, self.sampling.max_tokens, tokens_left)
            try:
                completion = await self.policy.complete(self._messages, self._settings(budget))
            except ContextOverflow:
                return StopReason.CONTEXT
            tokens_left -= len(completion.output_ids or ())
            started_s = self.clock.monotonic_s()
            observation = await self.tool.act(self.task, sandbox, completion.text)
            self._record(context, completion, observation, self.clock.monotonic_s() - started_s)
            if observation.done:
                return StopReason.SOLVED
            if tokens_left <= 0:
                return StopReason.TOKENS
            context = observation.text
        return StopReason.TURNS

    def _settings(self, max_tokens: int) -> Sampling:
        seed = self.sampling.seed
        update: dict[str, int] = {"max_tokens": max_tokens}
        if seed is not None:
            update["seed"] = seed + len(self.turns)
        return self.sampling.model_copy(update=update)

    def _record(
        self, context: str, completion: Completion, observation: Observation, sandbox_s: float
    ) -> None:
        prompt, output = completion.prompt_ids or (), completion.output_ids or ()
        done = len(self._sequence)
        continues = list(prompt[:done]) == self._sequence
        self._sequence = [*prompt, *output]
        self._messages.append(Message("assistant", completion.text, completion.output_ids))
        self.turns.append(
            Turn(
                context=context,
                context_ids=prompt[done:] if continues else prompt,
                output=completion.text,
                output_ids=output,
                logprobs=completion.logprobs or (),
                versions=completion.versions,
                finish=completion.finish,
                observation=observation.text,
                commands=observation.commands,
                policy_s=completion.duration_s,
                sandbox_s=sandbox_s,
                branch=not continues,
            )
        )
