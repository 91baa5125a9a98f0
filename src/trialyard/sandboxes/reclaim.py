"""Removing what dead owners left: processes, cgroups, mounts, directories.

An owner is dead when nobody holds the lock in its directory. What is done is idempotent and
bounded in time; what would not go stays listed, and the next sweep tries again.
"""

import ctypes
import os
import re
import shutil
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from trialyard.core.errors import SandboxUnavailable
from trialyard.core.locks import holding, is_locked, lock_file
from trialyard.sandboxes.box_table import OwnerRecord, read_table
from trialyard.sandboxes.cgroups import kill_members, read_members, remove_directory
from trialyard.sandboxes.hierarchies import PARENT, Hierarchy
from trialyard.sandboxes.snapshot_files import SnapshotDirectory

LOCK_NAME = "lock"
TABLE_NAME = "boxes.jsonl"
GROUPS_NAME = "groups"
"""The cgroups of an owner: one that a service manager had delegated is found by no other way."""
SNAPSHOTS_NAME = "snapshots"
_RECLAIM_TIMEOUT_S = 5.0
_MNT_DETACH = 2


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What one dead owner had left."""

    supervisor: str
    boxes: tuple[str, ...]
    """Ids, from its table."""
    processes: int
    groups: int
    mounts: int
    gone: bool
    """False when something would not go in time; the next sweep tries again."""


@dataclass(frozen=True, slots=True)
class OwnerState:
    """One owner on this host, as found."""

    supervisor: str
    alive: bool
    record: OwnerRecord


def everybody_waits(root: Path) -> AbstractContextManager[None]:
    """One owner at a time starts, ends or sweeps."""
    return holding(root / LOCK_NAME)


def list_owners(root: Path) -> list[OwnerState]:
    """Every owner below a runtime directory, living or dead, and its boxes."""
    directory = root / "owners"
    names = sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
    return [
        OwnerState(
            name, is_locked(directory / name / LOCK_NAME), read_table(directory / name / TABLE_NAME)
        )
        for name in names
    ]


def reap(root: Path, hierarchies: list[Hierarchy]) -> list[Reclaimed]:
    """Remove all that dead owners left. Raises `SandboxUnavailable` without the right to."""
    if not (root / "owners").is_dir():
        return []
    try:
        with everybody_waits(root):
            found = reclaim_dead_owners(root, hierarchies)
        if (root / SNAPSHOTS_NAME).is_dir():
            SnapshotDirectory(root / SNAPSHOTS_NAME).open()
        return found
    except PermissionError as error:
        raise SandboxUnavailable(
            f"cannot clean up below {root} ({error.strerror}); run as root, who made the boxes"
        ) from error


def reclaim_dead_owners(root: Path, hierarchies: list[Hierarchy]) -> list[Reclaimed]:
    """Remove all that dead owners left; `everybody_waits` meanwhile. Bounded in time."""
    found = []
    for directory in sorted((root / "owners").iterdir()):
        try:
            fd = lock_file(directory / LOCK_NAME)
        except FileNotFoundError:  # its keeper was faster
            continue
        if fd is None:
            continue
        os.close(fd)
        found.append(_reclaim(directory, hierarchies))
    remove_unused_parents(hierarchies)
    return found


def remove_unused_parents(hierarchies: list[Hierarchy]) -> None:
    for hierarchy in hierarchies:
        remove_directory(str(hierarchy.root / PARENT))


def _reclaim(directory: Path, hierarchies: list[Hierarchy]) -> Reclaimed:
    boxes = tuple(box.id for box in read_table(directory / TABLE_NAME).boxes)
    parents = _parents_of(directory, hierarchies)
    groups = [group for parent in parents for group in _groups_below(parent)]
    processes = {pid for group in groups for pid in read_members(str(group))}
    mounts = _detach_mounts(directory)
    gone = _remove_groups(parents) and not _mounts_below(directory)
    for parent in parents:
        remove_directory(str(parent.parent))
    if gone:  # never through a mount into what is mounted there
        shutil.rmtree(directory, ignore_errors=True)
        gone = not directory.exists()
    return Reclaimed(directory.name, boxes, len(processes), len(groups), mounts, gone)


def _parents_of(directory: Path, hierarchies: list[Hierarchy]) -> list[Path]:
    """The groups of an owner, by its own record and where we would have made them."""
    recorded = directory / GROUPS_NAME
    lines = recorded.read_text().splitlines() if recorded.exists() else []
    here = [hierarchy.root / PARENT / directory.name for hierarchy in hierarchies]
    return list(dict.fromkeys([*map(Path, lines), *here]))


def _groups_below(parent: Path) -> list[Path]:
    return [entry for entry in parent.iterdir() if entry.is_dir()] if parent.is_dir() else []


def _remove_groups(parents: list[Path]) -> bool:
    """Kill and remove the boxes of one owner; False when some would not go in time."""
    deadline = time.monotonic() + _RECLAIM_TIMEOUT_S
    while True:
        gone = [_kill_and_remove(parent) for parent in parents]
        if all(gone) or time.monotonic() > deadline:
            return all(gone)
        time.sleep(0.01)


def _kill_and_remove(parent: Path) -> bool:
    if not parent.is_dir():
        return True
    for group in _groups_below(parent):
        if not remove_directory(str(group)):
            kill_members(str(group))
    return remove_directory(str(parent))


def _detach_mounts(directory: Path) -> int:
    """Mounts below a dead owner's directory would keep it; boxes mount nothing outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    return sum(
        libc.umount2(os.fsencode(path), _MNT_DETACH) == 0
        for path in reversed(_mounts_below(directory))
    )


def _mounts_below(directory: Path) -> list[Path]:
    """Mount points at and below a directory, in the order of mounting."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [
        Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), line.split(" ")[4]))
        for line in lines
    ]
    return [path for path in points if path.is_relative_to(directory.resolve())]
