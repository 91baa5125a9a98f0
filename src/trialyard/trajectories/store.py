"""The trajectory store: every rollout's record, written once and before anybody uses it.

`append` returns when the records are on the disk *and* in the ledger's index. A record
is what the index says it is: (segment, batch), found by id, exactly once. A process
killed between the two leaves a whole batch that the index does not know; the next
store opened for writing adopts it. Each opening writes a segment of its own, so a torn
tail never has anything after it.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from trialyard.core.durable import make_directory
from trialyard.core.errors import NotFoundError, StoreError
from trialyard.core.ledger import TrajectoryIndex, TrajectoryRow, TrajectoryState
from trialyard.core.trajectory import Trajectory
from trialyard.trajectories.schema import from_batch, to_batch
from trialyard.trajectories.segment import (
    SEALED,
    STREAM,
    SegmentReader,
    SegmentWriter,
    StreamReader,
    damaged,
    open_segment,
    seal_segment,
)

ROWS_PER_BATCH = 64
"""A larger group is written as several batches, so that one record can be read alone."""


class TrajectoryStore:
    """Records of one run in `directory`, indexed by the run's ledger.

    `append`, `seal` and `close` belong to the one process that writes the ledger; with
    `read_only` nothing on the disk changes. Calls may come from any thread.
    """

    def __init__(
        self, directory: Path | str, ledger: TrajectoryIndex, *, read_only: bool = False
    ) -> None:
        self._directory = Path(directory)
        self._ledger = ledger
        self._read_only = read_only
        self._guard = threading.RLock()
        self._writer: SegmentWriter | None = None
        self._readers: dict[str, SegmentReader] = {}
        self._counters = {"appended": 0, "adopted": 0, "torn_bytes": 0}
        if not read_only:
            try:
                make_directory(self._directory)
            except OSError as error:
                raise StoreError(f"trajectory store {directory}: {error}") from error
            self._recover()

    def append(self, group: Sequence[Trajectory]) -> None:
        """Store records durably. An id that is already stored is left as it is.

        Raises `StoreError`, and then nothing of the group is acknowledged; the next call
        starts a new segment.
        """
        with self._guard:
            self._refuse_read_only()
            known = self._ledger.find_trajectories([trajectory.id for trajectory in group])
            fresh = {t.id: t for t in reversed(group) if t.id not in known}
            if not fresh:
                return
            records = list(reversed(fresh.values()))
            starts = range(0, len(records), ROWS_PER_BATCH)
            parts = [records[start : start + ROWS_PER_BATCH] for start in starts]
            segment, first = self._write([to_batch(part) for part in parts])
            rows = [
                _index(t, segment, number) for number, part in enumerate(parts, first) for t in part
            ]
            self._ledger.record_trajectories(rows)
            self._counters["appended"] += len(records)

    def get(self, id: str) -> Trajectory:
        """One record. Raises `NotFoundError`, or `StoreError` when it is damaged."""
        return self.load([id])[0]

    def load(self, ids: Sequence[str]) -> list[Trajectory]:
        """Records in the order of `ids`. Raises like `get`."""
        rows = self._ledger.find_trajectories(ids)
        for id_ in ids:
            if id_ not in rows:
                raise NotFoundError(f"no trajectory {id_!r} in {self._directory}")
        found: dict[str, Trajectory] = {}
        for place, members in _by_place(sorted(rows.values(), key=_place)):
            found |= self._read(place, [row.id for row in members])
        return [found[id_] for id_ in ids]

    def iter(self) -> Iterator[Trajectory]:
        """All records in the order in which they were stored; one batch in memory at a time."""
        for place, members in _by_place(self._ledger.trajectories()):
            yield from self._read(place, [row.id for row in members]).values()

    def rows(self, state: TrajectoryState | None = None) -> list[TrajectoryRow]:
        """Index entries in the order in which they were recorded."""
        return self._ledger.trajectories(state)

    def seal(self) -> list[str]:
        """Turn every finished segment into Parquet; return their names. Lookups go on working.

        The segment being written is finished first; the next `append` starts a new one.
        """
        with self._guard:
            self._refuse_read_only()
            self._finish()
            streams = sorted(self._directory.glob(f"*{STREAM}"))
            recorded = self._recorded_batches() if streams else {}
            for path in streams:
                self._seal(path, recorded.get(path.stem, 0))
            return [path.stem for path in streams]

    def close(self) -> None:
        """Finish the segment being written. Idempotent."""
        with self._guard:
            self._finish()

    def counters(self) -> dict[str, int]:
        """Counts: records appended and adopted, bytes of torn tails left out."""
        return dict(self._counters)

    # Writing

    def _write(self, batches: Sequence[pa.RecordBatch]) -> tuple[str, int]:
        """Segment and number of the first of these batches."""
        try:
            if self._writer is None:
                self._writer = SegmentWriter(self._next_path())
            return self._writer.path.stem, self._writer.append(batches)
        except (OSError, pa.ArrowException) as error:
            if self._writer is not None:
                self._writer.abandon()
                self._writer = None
            raise StoreError(
                f"trajectories were not stored in {self._directory}: {error}; free some space, "
                "then go on: nothing that was acknowledged is lost"
            ) from error

    def _next_path(self) -> Path:
        numbers = [
            int(path.stem)
            for suffix in (STREAM, SEALED)
            for path in self._directory.glob(f"*{suffix}")
            if path.stem.isdigit()
        ]
        return self._directory / f"{max(numbers, default=0) + 1:06d}{STREAM}"

    def _finish(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.close()
            except (OSError, pa.ArrowException):
                # Only the end mark is missing; every batch was acknowledged by its own fsync.
                writer.abandon()

    def _refuse_read_only(self) -> None:
        if self._read_only:
            raise StoreError(f"trajectory store {self._directory} is open for reading only")

    # Recovery and sealing

    def _recover(self) -> None:
        """Adopt whole batches that the index does not know; count what a kill tore."""
        for leftover in self._directory.glob("*.tmp"):
            leftover.unlink()
        streams = sorted(self._directory.glob(f"*{STREAM}"))
        recorded = self._recorded_batches() if streams else {}
        for path in streams:
            if path.with_suffix(SEALED).exists():
                path.unlink()
                continue
            reader = StreamReader(path)
            self._counters["torn_bytes"] += reader.torn_bytes()
            for number in range(recorded.get(path.stem, 0), reader.num_batches()):
                self._adopt(path, number, reader)

    def _adopt(self, path: Path, number: int, reader: StreamReader) -> None:
        with contextlib.suppress(StoreError):  # never acknowledged, so it may be left out
            records = from_batch(reader.read(number), f"segment {path}, batch {number}")
            known = self._ledger.find_trajectories([t.id for t in records])
            rows = [_index(t, path.stem, number) for t in records if t.id not in known]
            self._ledger.record_trajectories(rows)
            self._counters["adopted"] += len(rows)

    def _recorded_batches(self) -> dict[str, int]:
        """Segment -> number of batches up to the last one that the index knows."""
        counts: dict[str, int] = {}
        for row in self._ledger.trajectories():
            counts[row.segment] = max(counts.get(row.segment, 0), row.offset + 1)
        return counts

    def _seal(self, path: Path, num_batches: int) -> None:
        reader = StreamReader(path)

        def verified() -> Iterator[pa.RecordBatch]:
            for number in range(num_batches):
                batch = reader.read(number)
                from_batch(batch, f"segment {path}, batch {number}")
                yield batch

        seal_segment(path, verified())
        self._readers.pop(path.stem, None)

    # Reading

    def _read(self, place: tuple[str, int], ids: Sequence[str]) -> dict[str, Trajectory]:
        segment, number = place
        batch = self._read_batch(segment, number)
        name = f"segment {self._directory / segment}, batch {number}"
        try:
            stored = batch.column("id").to_pylist()
            wanted = batch.take([stored.index(id_) for id_ in ids])
        except (ValueError, KeyError, pa.ArrowException) as error:
            raise damaged(self._directory / segment, number, error) from error
        return {t.id: t for t in from_batch(wanted, name)}

    def _read_batch(self, segment: str, number: int) -> pa.RecordBatch:
        with self._guard:
            if segment not in self._readers:
                self._readers[segment] = open_segment(self._directory, segment)
            reader = self._readers[segment]
            if not reader.path.exists():  # sealed by the writer since
                reader = self._readers[segment] = open_segment(self._directory, segment)
            return reader.read(number)


def _index(trajectory: Trajectory, segment: str, number: int) -> TrajectoryRow:
    return TrajectoryRow(
        id=trajectory.id,
        group=trajectory.group,
        member=trajectory.member,
        task_id=trajectory.task_id,
        task_hash=trajectory.task_hash,
        segment=segment,
        offset=number,
        oldest_version=trajectory.oldest_version,
        reward=trajectory.reward,
        fault=trajectory.verdict.fault,
    )


def _place(row: TrajectoryRow) -> tuple[str, int]:
    return row.segment, row.offset


def _by_place(
    rows: Sequence[TrajectoryRow],
) -> Iterator[tuple[tuple[str, int], list[TrajectoryRow]]]:
    for place, members in groupby(rows, key=_place):
        yield place, list(members)
