"""The collector: keeps groups in flight ahead of the learner and hands out batches.

Two bounds hold together (they are the only place where staleness is decided):

- *pacing*: groups started by step i are at most ``(i + 1 + max_staleness) * batch``,
  plus one for each group that was dropped;
- *consumption*: no group is handed out whose oldest token is more than
  ``max_staleness`` versions behind the learner; such a group is dropped and refilled.

A group counts as finished only once it is stored durably.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from trialyard.core.trajectory import Group

StartGroup = Callable[[int], Awaitable[Group]]
"""Run the group of an index and store it; the same index always means the same task."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups for one step, in index order, and those dropped on the way with the reason."""

    groups: tuple[Group, ...]
    dropped: tuple[tuple[Group, str], ...]


class Collector:
    """Source of batches. `batch` and `close` are called by one task."""

    def __init__(
        self,
        start_group: StartGroup,
        *,
        batch_size: int,
        max_staleness: int,
        first_step: int = 0,
        restored: Iterable[tuple[int, Group]] = (),
        skip: Iterable[int] = (),
    ) -> None:
        """`restored` are stored groups that were never consumed; `skip` indices are done."""
        self._start_group = start_group
        self._batch_size = batch_size
        self._max_staleness = max_staleness
        self._steps_done = first_step
        self._ready: list[tuple[int, Group]] = sorted(restored, key=lambda item: item[0])
        self._done = {index for index, _ in self._ready} | set(skip)
        self._next_index = 0
        self._handed_out = first_step * batch_size
        self._running: dict[asyncio.Task[Group], int] = {}

    @property
    def in_flight(self) -> int:
        """Groups that are running now."""
        return len(self._running)

    async def batch(self, version: int) -> Batch:
        """The next `batch_size` groups fresh enough for the learner at `version`."""
        dropped: list[tuple[Group, str]] = []
        while True:
            dropped += self._drop_stale(version)
            if len(self._ready) >= self._batch_size:
                break
            self.dispatch()
            await self._wait()
        taken, self._ready = self._ready[: self._batch_size], self._ready[self._batch_size :]
        self._handed_out += len(taken)
        groups = tuple(group for _, group in sorted(taken, key=lambda item: item[0]))
        return Batch(groups, tuple(dropped))

    def step_done(self) -> None:
        """The learner took a step: more groups may start."""
        self._steps_done += 1
        self.dispatch()

    async def close(self) -> None:
        """Cancel what runs and wait until it has let go of its boxes. Idempotent."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    def dispatch(self) -> None:
        """Start as many groups as pacing allows."""
        allowed = (self._steps_done + 1 + self._max_staleness) * self._batch_size
        while self._handed_out + len(self._ready) + len(self._running) < allowed:
            while self._next_index in self._done:
                self._next_index += 1
            index, self._next_index = self._next_index, self._next_index + 1
            task = asyncio.ensure_future(self._start_group(index))
            self._running[task] = index

    async def _wait(self) -> None:
        finished, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            index = self._running.pop(task)
            self._ready.append((index, task.result()))

    def _drop_stale(self, version: int) -> list[tuple[Group, str]]:
        kept: list[tuple[int, Group]] = []
        dropped: list[tuple[Group, str]] = []
        for index, group in self._ready:
            oldest = group.oldest_version
            age = 0 if oldest is None else version - oldest
            if age > self._max_staleness:
                dropped.append((group, f"stale: {age} versions behind"))
            elif age < 0:
                dropped.append((group, "sampled by a version that was rolled back"))
            else:
                kept.append((index, group))
        self._ready = kept
        return dropped
