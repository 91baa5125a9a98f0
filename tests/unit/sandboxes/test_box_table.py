"""The table of boxes says what there is at every moment, whatever end its writer met."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trialyard.core.errors import SandboxUnavailable
from trialyard.core.sandbox import Limits
from trialyard.sandboxes import box_table
from trialyard.sandboxes.box_table import BoxTable, read_table

KIND = ("host", Limits(pids=7), "/work", "user")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "boxes.jsonl"


def test_a_box_is_in_the_table_from_before_its_start_until_it_is_gone(path: Path) -> None:
    table = BoxTable(path)
    table.starting("box-1", KIND, 200_001, 10.0)
    [box] = read_table(path).boxes
    assert (box.id, box.image, box.workdir, box.user) == ("box-1", "host", "/work", "user")
    assert (box.state, box.uid, box.started_s, box.limits["pids"]) == ("starting", 200_001, 10.0, 7)
    table.ready("box-1", 4321)
    table.leased("box-1", "run/a", 99.5)
    [box] = read_table(path).boxes
    assert (box.state, box.pid, box.owner, box.deadline_s) == ("leased", 4321, "run/a", 99.5)
    table.leaked("box-1")
    assert [box.state for box in read_table(path).boxes] == ["leaked"]
    table.ended("box-1")
    table.ended("box-1")
    assert read_table(path).boxes == []
    assert read_table(path).pid == os.getpid()
    table.close()


def test_nothing_is_read_where_nothing_is(path: Path) -> None:
    assert read_table(path).boxes == []


@given(cut=st.integers(0, 400), garbage=st.binary(max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_torn_table_is_read_as_far_as_it_goes(path: Path, cut: int, garbage: bytes) -> None:
    table = BoxTable(path)
    for number in range(3):
        table.starting(f"box-{number}", KIND, number, 0.0)
        table.ready(f"box-{number}", number)
    table.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)] + garbage)
    ids = [box.id for box in read_table(path).boxes]
    assert ids == [f"box-{number}" for number in range(3)][: len(ids)]


def test_the_file_does_not_grow_with_boxes_that_are_gone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box_table, "_SPARE_LINES", 50)
    table = BoxTable(path)
    table.starting("old", KIND, 1, 0.0)
    table.leased("old", "run", 5.0)
    for number in range(500):
        limits = Limits(pids=10 + number % 3)
        table.starting(f"box-{number}", ("host", limits, "/work", "user"), number, 1.0)
        table.ready(f"box-{number}", number)
        if number < 497:
            table.ended(f"box-{number}")
    assert len(path.read_bytes().splitlines()) < 80
    record = read_table(path)
    assert [box.id for box in record.boxes] == ["old", "box-497", "box-498", "box-499"]
    assert [box.limits["pids"] for box in record.boxes] == [7, 12, 10, 11]
    assert record.boxes[0].owner == "run"
    assert record.pid == os.getpid()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    table.close()


def test_a_box_that_cannot_be_noted_does_not_start(path: Path) -> None:
    table = BoxTable(path)
    table._fd, real = os.open("/dev/full", os.O_WRONLY), table._fd
    with pytest.raises(SandboxUnavailable, match="No space left"):
        table.starting("box-1", KIND, 1, 0.0)
    os.close(table._fd)
    table._fd = real
    table.starting("box-2", KIND, 1, 0.0)
    assert [box.id for box in read_table(path).boxes] == ["box-2"]
    table.close()
