"""One grading for one answer: a bounded memory of verdicts in front of a grader.

Identical submissions that arrive together share one run. Only graded verdicts are
kept: an ungraded one says something about the machine at that time, not about the
answer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from trialyard.core.errors import NotFoundError, SandboxError
from trialyard.core.grader import Grader, Submission, Verdict
from trialyard.core.task import Task

Key = tuple[str, str, str, str, int]


class CachedGrader:
    """A `Grader`; `image_digest` and `version` belong to the identity of a grading."""

    def __init__(
        self,
        inner: Grader,
        *,
        image_digest: Callable[[str], str],
        version: str,
        max_verdicts: int = 65_536,
    ) -> None:
        self._inner = inner
        self._image_digest = image_digest
        self._version = version
        self._max_verdicts = max_verdicts
        self._verdicts: OrderedDict[Key, Verdict] = OrderedDict()
        self._flights: dict[Key, _Flight] = {}
        self.hits = 0
        """Gradings that needed no run of their own."""

    async def grade(self, task: Task, submission: Submission, *, seed: int = 0) -> Verdict:
        """Verdict of the first grading of this answer, or of a new one."""
        try:
            digest = self._image_digest(task.spec.image)
        except (NotFoundError, SandboxError):  # the inner grader says what that means
            return await self._inner.grade(task, submission, seed=seed)
        key = (task.hash, digest, submission.diff_hash, self._version, seed)
        verdict = self._verdicts.get(key)
        if verdict is not None:
            self._verdicts.move_to_end(key)
            self.hits += 1
            return verdict
        return await self._shared(key, task, submission, seed)

    async def _shared(self, key: Key, task: Task, submission: Submission, seed: int) -> Verdict:
        """Join the run of this key, or start it; it ends early only with its last waiter."""
        flight = self._flights.get(key)
        if flight is None:
            run = asyncio.create_task(self._inner.grade(task, submission, seed=seed))
            flight = self._flights[key] = _Flight(run)
            run.add_done_callback(lambda done: self._finished(key, done))
        else:
            self.hits += 1
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.run)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.run.done():
                self._flights.pop(key, None)
                flight.run.cancel()

    def _finished(self, key: Key, run: "asyncio.Task[Verdict]") -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.run is run:
            del self._flights[key]
        if run.cancelled() or run.exception() is not None:
            return
        verdict = run.result()
        if verdict.status == "graded":
            self._verdicts[key] = verdict
            while len(self._verdicts) > self._max_verdicts:
                self._verdicts.popitem(last=False)


@dataclass
class _Flight:
    """A grading in progress and how many wait for it."""

    run: "asyncio.Task[Verdict]"
    waiters: int = 0
