"""What every trajectory store promises."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.records import group_of, trajectory_of
from trialyard.core.errors import NotFoundError
from trialyard.core.trajectory import Trajectory
from trialyard.storage.ledger import SqlLedger
from trialyard.testing.storage import MemoryTrajectories
from trialyard.trajectories.store import TrajectoryStore

Store = TrajectoryStore | MemoryTrajectories


@pytest.fixture(params=["segments", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryTrajectories()
        return
    with SqlLedger(tmp_path / "ledger.sqlite") as ledger:
        made = TrajectoryStore(tmp_path / "trajectories", ledger)
        yield made
        made.close()


def test_records_come_back_equal_in_the_order_of_writing(store: Store) -> None:
    assert list(store.iter()) == []
    groups = [group_of(n, version=n, rewards=(1.0, None, 0.25)) for n in range(5)]
    for group in groups:
        store.append(group.trajectories)
    records = [t for group in groups for t in group.trajectories]
    assert list(store.iter()) == records
    assert [(row.id, row.reward, row.oldest_version, row.fault) for row in store.rows()] == [
        (t.id, t.reward, t.oldest_version, t.verdict.fault) for t in records
    ]


def test_load_gives_what_was_asked_in_that_order(store: Store) -> None:
    for n in range(3):
        store.append(group_of(n).trajectories)
    asked = [group_of(n).trajectories[m] for n, m in ((2, 1), (0, 0), (2, 0), (0, 0))]
    assert store.load([t.id for t in asked]) == asked
    assert store.load([]) == []
    assert store.get(asked[0].id) == asked[0]


def test_an_unknown_id_is_not_found(store: Store) -> None:
    store.append(group_of(0).trajectories)
    with pytest.raises(NotFoundError, match="'nobody'"):
        store.get("nobody")
    with pytest.raises(NotFoundError, match="'nobody'"):
        store.load([group_of(0).trajectories[0].id, "nobody"])


def test_a_known_id_is_left_as_it_is(store: Store) -> None:
    first = trajectory_of("a", reward=1.0)
    store.append([first])
    store.append([replace(first, seed=9), trajectory_of("b")])
    store.append([first])
    store.append([])
    assert list(store.iter()) == [first, trajectory_of("b")]


def test_an_id_twice_in_one_call_is_stored_once(store: Store) -> None:
    first = trajectory_of("a")
    store.append([first, replace(first, seed=9), trajectory_of("b")])
    assert list(store.iter()) == [first, trajectory_of("b")]


def test_a_large_group_comes_back_in_order(store: Store) -> None:
    records = [trajectory_of(f"t{n}", member=n) for n in range(200)]
    store.append(records)
    assert list(store.iter()) == records
    assert store.get("t150") == records[150]


def test_sealing_changes_nothing_for_readers(store: Store) -> None:
    expected: list[Trajectory] = []
    for n in range(6):
        group = group_of(n).trajectories
        store.append(group)
        expected += group
        if n % 2:
            store.seal()
            assert list(store.iter()) == expected
    assert store.get(expected[3].id) == expected[3]
    store.append(group_of(0).trajectories)
    assert list(store.iter()) == expected
