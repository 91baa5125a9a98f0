"""Segment files: an append-only Arrow IPC stream (zstd), later sealed into Parquet (zstd).

`NAME.arrows` is written by one process and grows by whole batches, each on the disk
before `append` returns; a kill leaves at most one torn batch at the end, which readers
leave out. `NAME.parquet` holds the same batches under the same numbers; it appears by
rename, complete, and only then the stream goes.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trialyard.core.durable import sync_directory
from trialyard.core.errors import StoreError
from trialyard.trajectories.schema import TRAJECTORY

STREAM = ".arrows"
SEALED = ".parquet"
ROWS_PER_GROUP = 256
_BATCH_ROWS = b"trialyard.batch_rows"
_DAMAGE = (pa.ArrowException, OSError, EOFError, ValueError)


class SegmentWriter:
    """Appends batches to a new stream. After an error it must be left (rule: never retry fsync)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_batches = 0
        self._file = path.open("xb")
        try:
            options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
            self._stream = pa.ipc.new_stream(self._file, TRAJECTORY, options=options)
            self._sync()
            sync_directory(path.parent)
        except BaseException:
            self.abandon()
            raise

    def append(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Write batches durably and return the number of the first. Raises OSError."""
        for batch in batches:
            self._stream.write_batch(batch)
        self._sync()
        self.num_batches += len(batches)
        return self.num_batches - len(batches)

    def close(self) -> None:
        """End the stream. Raises OSError."""
        self._stream.close()
        self._sync()
        self._file.close()

    def abandon(self) -> None:
        """Let go of a file that can no longer be trusted; what was acknowledged stays."""
        with contextlib.suppress(*_DAMAGE):
            self._file.close()

    def _sync(self) -> None:
        self._file.flush()
        os.fdatasync(self._file.fileno())


class StreamReader:
    """Reads batches of a stream that may still grow and may have a torn tail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts: list[int] = []
        self._end = 0
        self._schema: pa.Schema | None = None

    def num_batches(self) -> int:
        """Number of whole batches."""
        self._scan()
        return len(self._starts)

    def torn_bytes(self) -> int:
        """Bytes after the last whole batch that are not a stream's regular end."""
        self._scan()
        with self.path.open("rb") as file:
            file.seek(self._end)
            rest = file.read()
        return 0 if rest in (b"", b"\xff\xff\xff\xff\x00\x00\x00\x00") else len(rest)

    def read(self, number: int) -> pa.RecordBatch:
        """One batch. Raises `StoreError` naming segment and batch."""
        if number >= len(self._starts):
            self._scan()
        try:
            with pa.OSFile(str(self.path)) as file:
                file.seek(self._starts[number])
                message = pa.ipc.read_message(file)
                batch = pa.ipc.read_record_batch(message, self._schema)
                batch.validate(full=True)
        except (*_DAMAGE, IndexError) as error:
            raise damaged(self.path, number, error) from error
        return batch

    def _scan(self) -> None:
        """Find the starts of the batches written since the last look."""
        size = self.path.stat().st_size
        if size <= self._end:
            return
        with pa.memory_map(str(self.path)) as file, contextlib.suppress(*_DAMAGE):
            if self._schema is None:
                self._schema = pa.ipc.read_schema(file)
                self._end = file.tell()
            file.seek(self._end)
            while self._end < size:
                message = pa.ipc.read_message(file)
                if message.type != "record batch" or file.tell() > size:
                    break
                self._starts.append(self._end)
                self._end = file.tell()


class SealedReader:
    """Reads batches of a sealed segment; keeps the last row group decoded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with pq.ParquetFile(path) as file:
                rows = json.loads(file.schema_arrow.metadata[_BATCH_ROWS])
                groups = range(file.metadata.num_row_groups)
                group_rows = [file.metadata.row_group(number).num_rows for number in groups]
        except (*_DAMAGE, KeyError, TypeError) as error:
            raise StoreError(
                f"segment {path} cannot be read: {error}; restore it from a copy"
            ) from error
        self._batch_ends = list(accumulate(rows))
        self._batch_rows = rows
        self._group_ends = list(accumulate(group_rows))
        self._cached: tuple[int, pa.Table] | None = None

    def num_batches(self) -> int:
        """Number of batches."""
        return len(self._batch_rows)

    def torn_bytes(self) -> int:
        """Always 0: sealing leaves a torn tail behind."""
        return 0

    def read(self, number: int) -> pa.RecordBatch:
        """One batch. Raises `StoreError` naming segment and batch."""
        try:
            end = self._batch_ends[number]
            rows = self._batch_rows[number]
            group = next(i for i, last in enumerate(self._group_ends) if last >= end)
            first_row = self._group_ends[group - 1] if group else 0
            table = self._row_group(group).slice(end - rows - first_row, rows)
            return table.combine_chunks().to_batches()[0]
        except (*_DAMAGE, IndexError, StopIteration) as error:
            raise damaged(self.path, number, error) from error

    def _row_group(self, number: int) -> pa.Table:
        if self._cached is None or self._cached[0] != number:
            with pq.ParquetFile(self.path) as file:
                self._cached = (number, file.read_row_group(number, use_threads=False))
        return self._cached[1]


SegmentReader = StreamReader | SealedReader


def open_segment(directory: Path, name: str) -> SegmentReader:
    """Reader of a segment in whichever form it is. Raises `StoreError` when it is missing."""
    sealed, stream = directory / f"{name}{SEALED}", directory / f"{name}{STREAM}"
    if sealed.exists():
        return SealedReader(sealed)
    if stream.exists():
        return StreamReader(stream)
    raise StoreError(
        f"segment {name} is missing from {directory}; restore {stream.name} or {sealed.name} there"
    )


def seal_segment(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """Write `batches` of the stream at `path` as Parquet beside it, then remove the stream.

    Raises `StoreError`; the stream is kept then.
    """
    held = list(batches)
    if held:
        target = path.with_suffix(SEALED)
        temporary = path.with_suffix(f"{SEALED}.tmp")
        try:
            _write_sealed(temporary, held)
            temporary.replace(target)
            sync_directory(target.parent)
        except _DAMAGE as error:
            temporary.unlink(missing_ok=True)
            raise StoreError(f"segment {path} was not sealed: {error}") from error
    path.unlink()
    sync_directory(path.parent)


def _write_sealed(path: Path, batches: list[pa.RecordBatch]) -> None:
    """Row groups of whole batches; read back and compared before they count."""
    rows = json.dumps([batch.num_rows for batch in batches])
    schema = batches[0].schema.with_metadata({_BATCH_ROWS: rows})
    groups = [pa.Table.from_batches(part) for part in _row_groups(batches)]
    with path.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in groups:
                writer.write_table(table.replace_schema_metadata(schema.metadata))
        file.flush()
        os.fsync(file.fileno())
    with pq.ParquetFile(path) as written:
        for number, table in enumerate(groups):
            if not written.read_row_group(number).equals(table):
                raise ValueError(f"row group {number} of {path} reads back different")


def _row_groups(batches: list[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    part: list[pa.RecordBatch] = []
    for batch in batches:
        part.append(batch)
        if sum(b.num_rows for b in part) >= ROWS_PER_GROUP:
            yield part
            part = []
    if part:
        yield part


def damaged(path: Path, number: int, error: Exception | str) -> StoreError:
    """The error for a batch that was acknowledged and cannot be read."""
    return StoreError(
        f"segment {path}, batch {number} is damaged or missing: {error}; restore the file from a "
        "copy, or go on without the records of this batch"
    )
