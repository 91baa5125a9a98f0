"""In-memory twins of the durable stores: the same promises, without a disk.

They hold what the contract suites ask of the real ones, except that nothing outlives
the process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trialyard.core.errors import NotFoundError, StoreError, UserError
from trialyard.core.ids import bytes_hash
from trialyard.core.ledger import CheckpointRow, TrajectoryRow, TrajectoryState
from trialyard.core.trajectory import Trajectory
from trialyard.core.weights import WeightVersion


class MemoryBlobs:
    """`BlobStore` in a dict."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        digest = bytes_hash(data)
        self._blobs[digest] = bytes(data)
        return digest

    def get(self, digest: str) -> bytes:
        if digest not in self._blobs:
            raise NotFoundError(f"blob {digest} is not in this store")
        return self._blobs[digest]

    def has(self, digest: str) -> bool:
        return digest in self._blobs

    def remove(self, digest: str) -> None:
        self._blobs.pop(digest, None)


class MemoryLedger:
    """`Ledger` and `TrajectoryIndex` in dicts."""

    def __init__(self) -> None:
        self._rows: dict[str, TrajectoryRow] = {}
        self._last: CheckpointRow | None = None

    def record_trajectories(self, rows: Sequence[TrajectoryRow]) -> None:
        for row in rows:
            self._rows.setdefault(row.id, row)

    def find_trajectories(self, ids: Sequence[str]) -> dict[str, TrajectoryRow]:
        return {id_: self._rows[id_] for id_ in ids if id_ in self._rows}

    def trajectories(self, state: TrajectoryState | None = None) -> list[TrajectoryRow]:
        return [row for row in self._rows.values() if state in (None, row.state)]

    def last_checkpoint(self) -> CheckpointRow | None:
        return self._last

    def checkpoint(
        self, row: CheckpointRow, *, consumed: Sequence[tuple[str, int]], dropped: Sequence[str]
    ) -> None:
        if row == self._last:
            self._check_repeated(row, consumed, dropped)
            return
        after = -1 if self._last is None else self._last.step
        if row.step <= after or any(not after < step <= row.step for _, step in consumed):
            raise StoreError(f"checkpoint of step {row.step} refused after step {after}")
        rows = dict(self._rows)
        for id_, step in consumed:
            open_row = self._open_row(rows, id_, ("stored", "admitted"))
            rows[id_] = replace(open_row, state="consumed", consumed_step=step)
        for id_ in dropped:
            open_row = self._open_row(rows, id_, ("stored", "admitted", "dropped"))
            rows[id_] = replace(open_row, state="dropped")
        self._rows, self._last = rows, row

    def close(self) -> None:
        """Nothing to flush."""

    def _check_repeated(
        self, row: CheckpointRow, consumed: Sequence[tuple[str, int]], dropped: Sequence[str]
    ) -> None:
        same = all(
            id_ in self._rows and self._rows[id_].consumed_step == step for id_, step in consumed
        ) and all(id_ in self._rows and self._rows[id_].state == "dropped" for id_ in dropped)
        if not same:
            raise StoreError(f"checkpoint of step {row.step} is committed with other trajectories")

    @staticmethod
    def _open_row(
        rows: dict[str, TrajectoryRow], id_: str, states: tuple[str, ...]
    ) -> TrajectoryRow:
        if id_ not in rows or rows[id_].state not in states:
            state = rows[id_].state if id_ in rows else "unknown"
            raise StoreError(f"trajectory {id_} cannot be used: it is {state}")
        return rows[id_]


class MemoryWeights:
    """`WeightStore` in dicts, with pins and rollback."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[WeightVersion, bytes]] = {}
        self._pinned: set[int] = set()

    def publish(self, weights: bytes, *, version: int, step: int) -> WeightVersion:
        if version in self._versions:
            known, data = self._versions[version]
            if data != weights:
                raise StoreError(f"weight version {version} is published with other bytes")
            return known
        newest = max(self._versions, default=None)
        if version < 0 or (newest is not None and version != newest + 1):
            raise StoreError(f"weight version {version} refused: the newest is {newest}")
        published = WeightVersion(version, bytes_hash(weights), step)
        self._versions[version] = (published, bytes(weights))
        return published

    def fetch(self, version: int) -> bytes:
        if version not in self._versions:
            raise NotFoundError(f"weight version {version} was never published or is pruned")
        return self._versions[version][1]

    def latest(self) -> WeightVersion | None:
        return self._versions[max(self._versions)][0] if self._versions else None

    def prune(self, *, keep: int) -> int:
        if keep < 1:
            raise UserError(f"keep is {keep}; at least the newest version stays")
        going = [v for v in sorted(self._versions)[:-keep] if v not in self._pinned]
        for version in going:
            del self._versions[version]
        return len(going)

    def rollback(self, version: int) -> int:
        """Forget every version after `version`; return how many went."""
        going = [number for number in self._versions if number > version]
        for number in going:
            del self._versions[number]
            self._pinned.discard(number)
        return len(going)

    def pin(self, version: int) -> None:
        """Protect a version from pruning."""
        if version not in self._versions:
            raise NotFoundError(f"weight version {version} cannot be pinned: it is not there")
        self._pinned.add(version)

    def unpin(self, version: int) -> None:
        """Stop protecting a version."""
        self._pinned.discard(version)


class MemoryTrajectories:
    """Twin of `TrajectoryStore`: append once, read back."""

    def __init__(self) -> None:
        self._records: dict[str, Trajectory] = {}

    def append(self, group: Sequence[Trajectory]) -> None:
        for trajectory in group:
            self._records.setdefault(trajectory.id, trajectory)

    def get(self, id: str) -> Trajectory:
        return self.load([id])[0]

    def load(self, ids: Sequence[str]) -> list[Trajectory]:
        for id_ in ids:
            if id_ not in self._records:
                raise NotFoundError(f"no trajectory {id_!r} in this store")
        return [self._records[id_] for id_ in ids]

    def iter(self) -> Iterator[Trajectory]:
        yield from list(self._records.values())

    def rows(self) -> list[TrajectoryRow]:
        return [_row(number, record) for number, record in enumerate(self._records.values())]

    def seal(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing to finish."""


def _row(number: int, record: Trajectory) -> TrajectoryRow:
    return TrajectoryRow(
        id=record.id,
        group=record.group,
        member=record.member,
        task_id=record.task_id,
        task_hash=record.task_hash,
        segment="memory",
        offset=number,
        oldest_version=record.oldest_version,
        reward=record.reward,
        fault=record.verdict.fault,
    )
