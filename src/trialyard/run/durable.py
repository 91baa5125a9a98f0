"""The durable side of a run: store what was rolled out, commit steps, restore.

All storage runs on the run's one storage thread, so the event loop never waits for a
disk and the ledger has one writer.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from trialyard.core.ledger import CheckpointRow
from trialyard.core.trajectory import Group, Trajectory
from trialyard.run.collector import Batch
from trialyard.run.yard import Yard

P = ParamSpec("P")
T = TypeVar("T")

_TRAIN_GROUP = re.compile(r"^train/(\d+)$")


def train_group(index: int) -> str:
    """Name of the training group of an index."""
    return f"train/{index:07d}"


@dataclass
class Durable:
    """Commits and restores for one run."""

    yard: Yard
    _consumed: list[tuple[str, int]] = field(default_factory=list)
    _dropped: list[str] = field(default_factory=list)
    _last_state: str | None = None

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a storage call on the storage thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.yard.storage, lambda: function(*args, **kwargs))

    async def keep(self, trajectories: Sequence[Trajectory]) -> None:
        """Store trajectories durably, once."""
        await self.call(self.yard.trajectories.append, trajectories)

    async def commit(self, step: int, version: int, batch: Batch, weights: bytes) -> None:
        """Note what `step` consumed; on schedule checkpoint it; then publish the weights."""
        self._consumed += [(t.id, step) for group in batch.groups for t in group.trajectories]
        self._dropped += [t.id for group, _ in batch.dropped for t in group.trajectories]
        config = self.yard.config
        if step % config.checkpoint.every == 0 or step == config.rl.steps:
            await self.checkpoint(step, version)
        await self.call(self.yard.weights.publish, weights, version=version, step=step)
        await self.call(self.yard.weights.prune, keep=config.checkpoint.keep)

    async def checkpoint(self, step: int, version: int) -> None:
        """Save the learner and commit it with all that was consumed since the last one."""
        state = await self.yard.learner.save()
        await self.call(self._commit_state, state, step, version)

    def _commit_state(self, state: bytes, step: int, version: int) -> None:
        digest = self.yard.blobs.put(state)
        row = CheckpointRow(step, version, digest)
        self.yard.ledger.checkpoint(row, consumed=self._consumed, dropped=self._dropped)
        self._consumed, self._dropped = [], []
        if self._last_state not in (None, digest):
            self.yard.blobs.remove(self._last_state or "")
        self._last_state = digest

    async def restore(self) -> CheckpointRow | None:
        """Bring the learner and the policy to the last checkpoint; None for a fresh run."""
        row = await self.call(self.yard.ledger.last_checkpoint)
        if row is None:
            return None
        await self.yard.learner.restore(await self.call(self.yard.blobs.get, row.state_digest))
        self._last_state = row.state_digest
        weights = await self.yard.learner.weights()
        await self.call(self.yard.weights.rollback, row.weight_version)
        await self.call(
            self.yard.weights.publish, weights, version=row.weight_version, step=row.step
        )
        await self.yard.policy.load(weights, row.weight_version)
        return row

    async def unconsumed(self) -> tuple[list[tuple[int, Group]], list[int]]:
        """Whole training groups stored but never consumed, and the indices that are done."""
        rows = await self.call(self.yard.ledger.trajectories)
        waiting: dict[int, list[str]] = defaultdict(list)
        done: set[int] = set()
        for row in rows:
            if match := _TRAIN_GROUP.match(row.group):
                index = int(match[1])
                done.add(index)
                if row.state == "stored":
                    waiting[index].append(row.id)
        groups = [(index, await self._group(ids)) for index, ids in sorted(waiting.items())]
        return groups, sorted(done)

    async def _group(self, ids: list[str]) -> Group:
        members = await self.call(self.yard.trajectories.load, ids)
        members = sorted(members, key=lambda member: member.member)
        first = members[0]
        return Group(first.group, first.task_id, first.task_hash, tuple(members))
