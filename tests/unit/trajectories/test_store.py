"""Segments on the disk: torn tails, flipped bits, interrupted sealing, full disks."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.records import group_of
from trialyard.core.errors import StoreError
from trialyard.core.trajectory import Trajectory
from trialyard.storage.ledger import SqlLedger
from trialyard.testing.storage import MemoryLedger
from trialyard.trajectories import segment
from trialyard.trajectories.store import TrajectoryStore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "trajectories"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqlLedger]:
    with SqlLedger(tmp_path / "ledger.sqlite") as made:
        yield made


def _filled(directory: Path, ledger: SqlLedger | MemoryLedger, groups: int) -> list[Trajectory]:
    """Groups appended by a writer that then dies: its stream has no end mark."""
    store = TrajectoryStore(directory, ledger)
    records: list[Trajectory] = []
    for n in range(groups):
        store.append(group_of(n).trajectories)
        records += group_of(n).trajectories
    assert store._writer is not None
    store._writer.abandon()
    return records


def test_each_opening_writes_a_segment_of_its_own(directory: Path, ledger: SqlLedger) -> None:
    for n in range(3):
        store = TrajectoryStore(directory, ledger)
        store.append(group_of(n).trajectories)
        store.close()
        store.close()
    TrajectoryStore(directory, ledger).close()
    assert sorted(p.name for p in directory.iterdir()) == [
        "000001.arrows",
        "000002.arrows",
        "000003.arrows",
    ]
    assert len(list(TrajectoryStore(directory, ledger).iter())) == 6


def test_a_segment_is_a_plain_arrow_stream_for_other_tools(
    directory: Path, ledger: SqlLedger
) -> None:
    store = TrajectoryStore(directory, ledger)
    store.append(group_of(0).trajectories)
    store.close()
    table = pa.ipc.open_stream(directory / "000001.arrows").read_all()
    assert table["id"].to_pylist() == [t.id for t in group_of(0).trajectories]
    store.seal()
    assert pq.read_table(directory / "000001.parquet").equals(table)


def test_a_torn_tail_is_left_out_and_counted_wherever_it_is_cut(tmp_path: Path) -> None:
    ledger, directory = MemoryLedger(), tmp_path / "trajectories"
    records = _filled(directory, ledger, 2)
    whole = (directory / "000001.arrows").read_bytes()
    _filled(tmp_path / "longer", MemoryLedger(), 3)
    longer = (tmp_path / "longer" / "000001.arrows").read_bytes()
    assert longer.startswith(whole)
    path = directory / "000001.arrows"
    for length in range(len(whole), len(longer), 2):
        path.write_bytes(longer[:length])
        reader = segment.StreamReader(path)
        assert (reader.num_batches(), reader.torn_bytes()) == (2, length - len(whole))
        if length % 97 == 0:
            store = TrajectoryStore(directory, ledger)
            assert store.counters() == {
                "appended": 0,
                "adopted": 0,
                "torn_bytes": length - len(whole),
            }
            assert list(store.iter()) == records


def test_after_a_torn_tail_the_run_goes_on(directory: Path, ledger: SqlLedger) -> None:
    records = _filled(directory, ledger, 2)
    with (directory / "000001.arrows").open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x00\x01\x00\x00torn")
    store = TrajectoryStore(directory, ledger)
    store.append(group_of(2).trajectories)
    assert list(store.iter()) == [*records, *group_of(2).trajectories]
    assert store.seal() == ["000001", "000002"]
    assert list(store.iter()) == [*records, *group_of(2).trajectories]


def test_a_batch_that_was_not_indexed_is_adopted_once(directory: Path) -> None:
    ledger, lost = MemoryLedger(), MemoryLedger()
    records = _filled(directory, lost, 3)
    ledger.record_trajectories(lost.trajectories()[:2])
    for adopted in (4, 0):
        store = TrajectoryStore(directory, ledger)
        assert store.counters()["adopted"] == adopted
        assert list(store.iter()) == records
    store.append(records[4:])
    assert list(store.iter()) == records


def test_a_flipped_bit_is_detected_wherever_it_is(tmp_path: Path) -> None:
    ledger, directory = MemoryLedger(), tmp_path / "trajectories"
    records = _filled(directory, ledger, 2)
    path = directory / "000001.arrows"
    whole = path.read_bytes()
    detected = 0
    for at in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[at] ^= 1 << (at % 8)
        path.write_bytes(changed)
        store = TrajectoryStore(directory, ledger, read_only=True)
        try:
            assert list(store.iter()) == records, f"silently different after a flip at {at}"
        except StoreError as error:
            assert "000001" in str(error)  # noqa: PT017
            detected += 1
    assert detected > len(whole) // 7 // 2


def test_the_error_names_segment_and_batch(directory: Path, ledger: SqlLedger) -> None:
    records = _filled(directory, ledger, 3)
    path = directory / "000001.arrows"
    starts = segment.StreamReader(path)
    assert starts.num_batches() == 3
    data = bytearray(path.read_bytes())
    middle = data.index(b"(\xb5/\xfd", starts._starts[1]) + 20  # inside a zstd frame of batch 1
    data[middle] ^= 0x10
    path.write_bytes(data)
    store = TrajectoryStore(directory, ledger)
    with pytest.raises(StoreError, match=r"000001.*batch 1.*(damaged|corrupt)"):
        store.get(records[2].id)
    assert store.get(records[0].id) == records[0]
    assert store.get(records[5].id) == records[5]
    with pytest.raises(StoreError, match="batch 1"):
        store.seal()
    assert path.exists()


def test_acknowledged_batches_cut_off_are_an_error_not_a_torn_tail(
    directory: Path, ledger: SqlLedger
) -> None:
    records = _filled(directory, ledger, 3)
    path = directory / "000001.arrows"
    path.write_bytes(path.read_bytes()[:-40])
    store = TrajectoryStore(directory, ledger)
    assert store.get(records[0].id) == records[0]
    with pytest.raises(StoreError, match=r"000001.*batch 2 is damaged or missing"):
        store.get(records[4].id)
    with pytest.raises(StoreError, match="batch 2"):
        store.seal()


def test_a_missing_segment_is_named(directory: Path, ledger: SqlLedger) -> None:
    records = _filled(directory, ledger, 1)
    shutil.rmtree(directory)
    with pytest.raises(StoreError, match="segment 000001 is missing"):
        TrajectoryStore(directory, ledger).get(records[0].id)


def test_nothing_is_acknowledged_when_the_disk_is_full(
    directory: Path, ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TrajectoryStore(directory, ledger)
    store.append(group_of(0).trajectories)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", no_space)
        for _ in range(2):
            with pytest.raises(StoreError, match="No space left"):
                store.append(group_of(1).trajectories)
    assert list(store.iter()) == list(group_of(0).trajectories)
    store.append(group_of(1).trajectories)
    expected = [*group_of(0).trajectories, *group_of(1).trajectories]
    assert list(store.iter()) == expected
    store.close()
    assert list(TrajectoryStore(directory, ledger).iter()) == expected


def test_sealing_interrupted_at_any_point_loses_nothing(
    directory: Path, ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = _filled(directory, ledger, 3)
    stream = (directory / "000001.arrows").read_bytes()
    (directory / "000001.parquet.tmp").write_bytes(b"half a file")
    store = TrajectoryStore(directory, ledger)
    assert list(store.iter()) == records
    store.seal()
    (directory / "000001.arrows").write_bytes(stream)  # died between rename and remove
    store = TrajectoryStore(directory, ledger)
    assert sorted(p.name for p in directory.iterdir()) == ["000001.parquet"]
    assert list(store.iter()) == records


def test_a_failed_seal_keeps_the_stream(
    directory: Path, ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = _filled(directory, ledger, 2)
    store = TrajectoryStore(directory, ledger)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(StoreError, match=r"was not sealed.*No space left"):
            store.seal()
    assert [p.name for p in directory.iterdir()] == ["000001.arrows"]
    assert list(store.iter()) == records
    assert store.seal() == ["000001"]


def test_a_sealed_segment_keeps_batches_across_row_groups(
    directory: Path, ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "ROWS_PER_GROUP", 5)
    records = _filled(directory, ledger, 9)
    store = TrajectoryStore(directory, ledger)
    store.seal()
    assert pq.ParquetFile(directory / "000001.parquet").metadata.num_row_groups == 3
    assert list(store.iter()) == records
    for record in records[::5]:
        assert store.get(record.id) == record


def test_a_damaged_sealed_segment_is_detected(directory: Path) -> None:
    ledger = MemoryLedger()
    records = _filled(directory, ledger, 4)
    TrajectoryStore(directory, ledger).seal()
    path = directory / "000001.parquet"
    whole = path.read_bytes()
    detected = 0
    for at in range(0, len(whole), 37):
        changed = bytearray(whole)
        changed[at] ^= 1 << (at % 8)
        path.write_bytes(changed)
        try:
            assert list(TrajectoryStore(directory, ledger, read_only=True).iter()) == records
        except StoreError as error:
            assert "000001" in str(error)  # noqa: PT017
            detected += 1
    assert detected > 0


def test_a_reader_beside_the_writer_sees_what_is_acknowledged(
    directory: Path, tmp_path: Path, ledger: SqlLedger
) -> None:
    writer = TrajectoryStore(directory, ledger)
    writer.append(group_of(0).trajectories)
    with SqlLedger(tmp_path / "ledger.sqlite", read_only=True) as index:
        reader = TrajectoryStore(directory, index, read_only=True)
        assert len(list(reader.iter())) == 2
        writer.append(group_of(1).trajectories)
        assert len(list(reader.iter())) == 4
        writer.seal()
        assert len(list(reader.iter())) == 4
        for refused in (reader.seal, lambda: reader.append(group_of(2).trajectories)):
            with pytest.raises(StoreError, match="reading only"):
                refused()
