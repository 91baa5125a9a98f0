"""What every ledger promises."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from trialyard.core.errors import StoreError
from trialyard.core.ledger import CheckpointRow, Ledger, TrajectoryIndex, TrajectoryRow
from trialyard.storage.ledger import SqlLedger
from trialyard.testing.storage import MemoryLedger


class IndexedLedger(Ledger, TrajectoryIndex, Protocol):
    """Both protocols, as the implementations have them."""


@pytest.fixture(params=["sqlite", "memory"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IndexedLedger]:
    made: IndexedLedger = (
        SqlLedger(tmp_path / "ledger.sqlite") if request.param == "sqlite" else MemoryLedger()
    )
    yield made
    made.close()


def _row(id: str, **changes: object) -> TrajectoryRow:
    row = TrajectoryRow(id, "g", 0, "t/1", "h", "000001", 0, 3, 0.5, "none")
    return replace(row, **changes)  # type: ignore[arg-type]


def _states(ledger: IndexedLedger) -> dict[str, tuple[str, int | None]]:
    return {row.id: (row.state, row.consumed_step) for row in ledger.trajectories()}


def test_rows_come_back_equal_and_in_order(ledger: IndexedLedger) -> None:
    rows = [
        _row("b", member=1, segment="000002", offset=7),
        _row("a", oldest_version=None, reward=None, fault="environment"),
        _row("c", reward=0.1 + 0.2, task_hash="", oldest_version=0),
    ]
    ledger.record_trajectories(rows[:2])
    ledger.record_trajectories(rows[2:])
    ledger.record_trajectories([])
    assert ledger.trajectories() == rows


def test_recording_an_id_again_changes_nothing(ledger: IndexedLedger) -> None:
    ledger.record_trajectories([_row("a"), _row("a", offset=9)])
    ledger.record_trajectories([_row("a", segment="elsewhere"), _row("b")])
    assert ledger.trajectories() == [_row("a"), _row("b")]


def test_find_returns_what_is_recorded(ledger: IndexedLedger) -> None:
    ledger.record_trajectories([_row(f"t{n}") for n in range(1500)])
    asked = [f"t{n}" for n in range(0, 1500, 2)] + ["missing"]
    found = ledger.find_trajectories(asked)
    assert set(found) == set(asked) - {"missing"}
    assert found["t4"] == _row("t4")
    assert ledger.find_trajectories([]) == {}


def test_a_checkpoint_commits_consumption_with_it(ledger: IndexedLedger) -> None:
    assert ledger.last_checkpoint() is None
    ledger.record_trajectories([_row(id_) for id_ in "abcd"])
    ledger.checkpoint(CheckpointRow(2, 1, "s2"), consumed=[("a", 1), ("b", 2)], dropped=["c"])
    assert ledger.last_checkpoint() == CheckpointRow(2, 1, "s2")
    assert _states(ledger) == {
        "a": ("consumed", 1),
        "b": ("consumed", 2),
        "c": ("dropped", None),
        "d": ("stored", None),
    }
    assert [row.id for row in ledger.trajectories("stored")] == ["d"]
    assert [row.id for row in ledger.trajectories("consumed")] == ["a", "b"]


def test_recording_again_leaves_a_consumed_row_consumed(ledger: IndexedLedger) -> None:
    ledger.record_trajectories([_row("a")])
    ledger.checkpoint(CheckpointRow(0, 0, "s"), consumed=[("a", 0)], dropped=[])
    ledger.record_trajectories([_row("a")])
    assert _states(ledger) == {"a": ("consumed", 0)}


@pytest.mark.parametrize(
    ("consumed", "dropped", "why"),
    [
        ([("used", 2)], [], "used"),
        ([("new", 2), ("new", 2)], [], "new"),
        ([("gone", 2)], [], "gone"),
        ([("new", 2)], ["new"], "new"),
        ([("unknown", 2)], [], "unknown"),
        ([], ["used"], "used"),
        ([], ["unknown"], "unknown"),
        ([("new", 1)], [], "step"),
        ([("new", 3)], [], "step"),
    ],
)
def test_using_twice_or_out_of_turn_refuses_the_whole_checkpoint(
    ledger: IndexedLedger, consumed: list[tuple[str, int]], dropped: list[str], why: str
) -> None:
    ledger.record_trajectories([_row(id_) for id_ in ("used", "gone", "new", "other")])
    ledger.checkpoint(CheckpointRow(1, 1, "s1"), consumed=[("used", 1)], dropped=["gone"])
    before = _states(ledger)
    with pytest.raises(StoreError, match=why):
        ledger.checkpoint(
            CheckpointRow(2, 2, "s2"), consumed=[("other", 2), *consumed], dropped=dropped
        )
    assert _states(ledger) == before
    assert ledger.last_checkpoint() == CheckpointRow(1, 1, "s1")


def test_checkpoints_go_forward(ledger: IndexedLedger) -> None:
    ledger.checkpoint(CheckpointRow(5, 2, "s5"), consumed=[], dropped=[])
    for row in (CheckpointRow(4, 2, "s4"), CheckpointRow(5, 2, "other")):
        with pytest.raises(StoreError, match="refused"):
            ledger.checkpoint(row, consumed=[], dropped=[])
    assert ledger.last_checkpoint() == CheckpointRow(5, 2, "s5")


def test_a_checkpoint_repeated_after_a_lost_reply_changes_nothing(ledger: IndexedLedger) -> None:
    ledger.record_trajectories([_row("a"), _row("b"), _row("c")])
    row = CheckpointRow(1, 1, "s1")
    ledger.checkpoint(row, consumed=[("a", 1)], dropped=["b"])
    before = _states(ledger)
    ledger.checkpoint(row, consumed=[("a", 1)], dropped=["b"])
    with pytest.raises(StoreError, match=r"already committed|is committed"):
        ledger.checkpoint(row, consumed=[("c", 1)], dropped=[])
    assert _states(ledger) == before


def test_dropping_again_is_fine(ledger: IndexedLedger) -> None:
    ledger.record_trajectories([_row("a")])
    ledger.checkpoint(CheckpointRow(1, 1, "s1"), consumed=[], dropped=["a"])
    ledger.checkpoint(CheckpointRow(2, 1, "s2"), consumed=[], dropped=["a"])
    assert _states(ledger) == {"a": ("dropped", None)}


def test_closing_twice_is_fine(ledger: IndexedLedger) -> None:
    ledger.close()
    ledger.close()
