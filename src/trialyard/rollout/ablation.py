"""An ablation: the feedback of a failed try is swapped for that of another task.

If solving suffers, the policy reads its feedback; if not, it only learnt "try again".
"""

from collections import deque

from trialyard.core.sandbox import Sandbox
from trialyard.core.task import Task
from trialyard.rollout.tools import Observation, Tool


class FeedbackBank:
    """The latest feedback texts, with the task that each belongs to."""

    def __init__(self, size: int = 64) -> None:
        self._texts: deque[tuple[str, str]] = deque(maxlen=size)

    def swap(self, task_id: str, text: str) -> str:
        """Keep `text`; give the oldest kept text of another task, or `text` at the start."""
        other = next((kept for owner, kept in self._texts if owner != task_id), text)
        self._texts.append((task_id, text))
        return other


class SwappedFeedback:
    """A tool whose observations are those of other tasks. What it does is unchanged."""

    def __init__(self, inner: Tool, bank: FeedbackBank) -> None:
        self._inner = inner
        self._bank = bank

    def opening(self, task: Task) -> str:
        return self._inner.opening(task)

    async def act(self, task: Task, sandbox: Sandbox, output: str) -> Observation:
        seen = await self._inner.act(task, sandbox, output)
        if seen.done:
            return seen
        return Observation(self._bank.swap(task.id, seen.text), commands=seen.commands)

    async def submission(self, task: Task, sandbox: Sandbox) -> dict[str, bytes | None]:
        return await self._inner.submission(task, sandbox)
