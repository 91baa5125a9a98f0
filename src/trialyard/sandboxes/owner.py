"""Who owns boxes on this host: a locked directory, uids of its own, and reclaim of the dead.

Invariants: a lock is held exactly as long as its owner lives (the kernel releases flock when
the process dies), so liveness needs no heartbeat; no two live owners share a uid; whatever a
dead owner left (processes, cgroups, directories) goes when the next owner starts.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from trialyard.core.errors import ResourceExhausted, SandboxUnavailable
from trialyard.sandboxes.cgroups import PARENT, Hierarchy, kill_members, remove_directory

UID_BASE = 200_000
UIDS_PER_BLOCK = 512
MAX_BLOCKS = 2048
_RECLAIM_TIMEOUT_S = 5.0


def _lock(path: Path, *, wait: bool = False) -> int | None:
    """Descriptor of the locked file, or None when somebody else holds the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


class UidAllocator:
    """Host uids, distinct among all live boxes of all owners. The oldest free one goes first."""

    def __init__(self, directory: Path, *, base: int = UID_BASE) -> None:
        self._directory = directory
        self._base = base
        self._free: deque[int] = deque()
        self._locks: list[int] = []
        self._tried = 0

    def take(self) -> int:
        """A uid that no living box has. Raises `ResourceExhausted`."""
        if not self._free:
            self._lock_block()
        return self._free.popleft()

    def give_back(self, uid: int) -> None:
        """Call when the last process of the uid is dead."""
        self._free.append(uid)

    def _lock_block(self) -> None:
        while self._tried < MAX_BLOCKS:
            block = self._tried
            self._tried += 1
            fd = _lock(self._directory / str(block))
            if fd is not None:
                self._locks.append(fd)
                first = self._base + block * UIDS_PER_BLOCK
                self._free.extend(range(first, first + UIDS_PER_BLOCK))
                return
        raise ResourceExhausted(
            f"all {MAX_BLOCKS * UIDS_PER_BLOCK} sandbox uids from {self._base} are in use"
        )

    def close(self) -> None:
        for fd in self._locks:
            os.close(fd)
        self._locks.clear()
        self._free.clear()


class Owner:
    """The right to have boxes on this host, for as long as the process lives."""

    def __init__(self, root: Path, name: str, hierarchies: list[Hierarchy]) -> None:
        self.name = name
        self._hierarchies = hierarchies
        self.directory = root / "owners" / name
        try:
            for directory in (root / "owners", root / "uids", root / "tree"):
                directory.mkdir(parents=True, exist_ok=True, mode=0o755)
            with _everybody_waits(root):
                reclaim_dead_owners(root, hierarchies)
                self.directory.mkdir(mode=0o755)
                self._lock = _lock(self.directory / "lock")
        except OSError as error:
            raise SandboxUnavailable(
                f"cannot use {root} ({error.strerror}); it must be a directory that the "
                "supervisor may write, on a local file system"
            ) from error
        self.uids = UidAllocator(root / "uids")

    def close(self) -> None:
        """Forget the owner; its boxes must be gone. Idempotent."""
        self.uids.close()
        with _everybody_waits(self.directory.parent.parent):
            _remove_unused_parents(self._hierarchies)
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def _everybody_waits(root: Path) -> Iterator[None]:
    """One owner at a time starts or sweeps."""
    fd = _lock(root / "lock", wait=True)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _remove_unused_parents(hierarchies: list[Hierarchy]) -> None:
    for hierarchy in hierarchies:
        remove_directory(str(hierarchy.root / PARENT))


def reclaim_dead_owners(root: Path, hierarchies: list[Hierarchy]) -> list[str]:
    """Remove all that dead owners left; returns their names. Bounded in time."""
    dead = []
    for directory in sorted((root / "owners").iterdir()):
        try:
            fd = _lock(directory / "lock")
        except FileNotFoundError:  # its keeper was faster
            continue
        if fd is None:
            continue
        os.close(fd)
        if _remove_groups(directory.name, hierarchies):
            shutil.rmtree(directory, ignore_errors=True)
            dead.append(directory.name)
    _remove_unused_parents(hierarchies)
    return dead


def _remove_groups(owner: str, hierarchies: list[Hierarchy]) -> bool:
    """Kill and remove the boxes of one owner; False when some would not go in time."""
    deadline = time.monotonic() + _RECLAIM_TIMEOUT_S
    parents = [hierarchy.root / PARENT / owner for hierarchy in hierarchies]
    while True:
        gone = [_kill_and_remove(parent) for parent in parents]
        if all(gone) or time.monotonic() > deadline:
            return all(gone)
        time.sleep(0.01)


def _kill_and_remove(parent: Path) -> bool:
    if not parent.is_dir():
        return True
    for group in [entry for entry in parent.iterdir() if entry.is_dir()]:
        if not remove_directory(str(group)):
            kill_members(str(group))
    return remove_directory(str(parent))
