"""Owners: distinct uids across processes, and reclaim of the dead alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trialyard.core.errors import ResourceExhausted
from trialyard.sandboxes.hierarchies import Hierarchy
from trialyard.sandboxes.owner import (
    IDS_PER_RANGE,
    MAX_BLOCKS,
    MAX_RANGE_BLOCKS,
    RANGE_BASE,
    RANGES_PER_BLOCK,
    UID_BASE,
    UIDS_PER_BLOCK,
    IdAllocator,
    Owner,
)
from trialyard.sandboxes.reclaim import reclaim_dead_owners


def test_two_allocators_never_give_one_uid_twice(tmp_path: Path) -> None:
    first, second = IdAllocator(tmp_path), IdAllocator(tmp_path)
    count = UIDS_PER_BLOCK + 3
    uids = [allocator.take() for allocator in (first, second) for _ in range(count)]
    assert len(set(uids)) == len(uids)
    assert min(uids) >= 200_000
    for allocator in (first, second):
        allocator.close()
    third = IdAllocator(tmp_path)
    assert third.take() == 200_000  # the locks of the others are gone
    third.close()


def test_a_uid_comes_again_only_after_all_others(tmp_path: Path) -> None:
    allocator = IdAllocator(tmp_path)
    uid = allocator.take()
    allocator.give_back(uid)
    others = [allocator.take() for _ in range(UIDS_PER_BLOCK - 1)]
    assert uid not in others
    assert allocator.take() == uid
    allocator.close()


def test_ranges_are_distinct_among_owners_and_apart_from_uids(tmp_path: Path) -> None:
    owners = [Owner(tmp_path, name, []) for name in ("a", "b")]
    firsts = [owner.ranges.take() for owner in owners for _ in range(RANGES_PER_BLOCK + 2)]
    assert len(set(firsts)) == len(firsts)
    assert all((first - RANGE_BASE) % IDS_PER_RANGE == 0 for first in firsts)
    assert min(firsts) > UID_BASE + UIDS_PER_BLOCK * MAX_BLOCKS
    last = RANGE_BASE + IDS_PER_RANGE * RANGES_PER_BLOCK * MAX_RANGE_BLOCKS
    assert last < 1 << 31
    first = owners[0].ranges.take()
    owners[0].ranges.give_back(first)
    assert owners[0].ranges.take() != first  # the oldest free one goes first
    for owner in owners:
        owner.close()


def test_uids_can_run_out(tmp_path: Path) -> None:
    allocator = IdAllocator(tmp_path, max_blocks=1)
    for _ in range(UIDS_PER_BLOCK):
        allocator.take()
    with pytest.raises(ResourceExhausted, match="uids"):
        allocator.take()
    allocator.close()


def leftovers(root: Path, hierarchy: Path, name: str) -> list[Path]:
    paths = [root / "owners" / name, hierarchy / "trialyard" / name / "u1"]
    for path in paths:
        path.mkdir(parents=True)
    return [paths[0], paths[1].parent]


def test_what_a_dead_owner_left_goes_and_a_living_one_stays(tmp_path: Path) -> None:
    root, tree = tmp_path / "run", tmp_path / "cgroup"
    hierarchies = [Hierarchy(tree, 1, frozenset({"memory"}))]
    living = Owner(root, "living", hierarchies)
    (tree / "trialyard" / "living" / "u2").mkdir(parents=True)
    dead = leftovers(root, tree, "dead")
    (dead[0] / "lock").touch()
    new = Owner(root, "new", hierarchies)
    assert not any(path.exists() for path in dead)
    assert (root / "owners" / "living").is_dir()
    assert (tree / "trialyard" / "living" / "u2").is_dir()
    for each in (new, living):
        each.close()
        each.close()
        assert not each.directory.exists()


def test_an_owner_is_dead_when_its_process_is(tmp_path: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path; from trialyard.sandboxes.owner import Owner\n"
        "Owner(Path(sys.argv[1]), 'other', []); print('up', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        mine = Owner(tmp_path, "mine", [])
        assert (tmp_path / "owners" / "other").is_dir()
        process.kill()
    mine.close()
    again = Owner(tmp_path, "again", [])
    assert not (tmp_path / "owners" / "other").exists()
    again.close()


def test_an_owner_that_vanishes_during_the_sweep_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owners").mkdir()
    gone = tmp_path / "owners" / "p1-gone"
    listed = [gone]
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(listed))
    assert reclaim_dead_owners(tmp_path, []) == []
