"""A box that stands still while its files are copied.

With cgroup version 2 the kernel freezes the box and no program can tell. Elsewhere its processes
are stopped by signal, parents first, and go on in the opposite order; a program may see that a
call was interrupted, and those that catch SIGCONT get it. Processes that the box itself had
stopped stay so. What sleeps deep in the kernel is not waited for longer than a second: it
changes no file meanwhile, but it may change one when it wakes.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trialyard.sandboxes.cgroups import BoxCgroup, read_members

_PATIENCE_S = 1.0
_PAUSE_S = 0.001


@contextlib.contextmanager
def frozen(cgroup: BoxCgroup) -> Iterator[None]:
    """Nothing of the box runs inside the block, as far as this host can do that."""
    for version, directory in cgroup.directories.values():
        freezer = Path(directory, "cgroup.freeze")
        if version == 2 and freezer.exists():
            with _frozen_by_kernel(freezer):
                yield
            return
    with _stopped(Path(cgroup.joins[0])):
        yield


@contextlib.contextmanager
def _frozen_by_kernel(freezer: Path) -> Iterator[None]:
    events = freezer.with_name("cgroup.events")
    try:
        with contextlib.suppress(FileNotFoundError):
            freezer.write_text("1")
            _wait_until(lambda: "frozen 1" in events.read_text())
        yield
    finally:
        with contextlib.suppress(OSError):  # the box is gone
            freezer.write_text("0")


@contextlib.contextmanager
def _stopped(group: Path) -> Iterator[None]:
    stopped: list[int] = []
    try:
        _wait_until(lambda: _stop_all(group, stopped))
        yield
    finally:
        for pid in reversed(stopped):
            _signal_member(group, pid, signal.SIGCONT)


def _stop_all(group: Path, stopped: list[int]) -> bool:
    """Stop what runs; True when nothing did."""
    quiet = True
    for pid in _members(group):
        if pid in stopped:
            quiet = quiet and _is_still(pid)
        elif not _is_still(pid):
            quiet = False
            if _signal_member(group, pid, signal.SIGSTOP):
                stopped.append(pid)
    return quiet


def _members(group: Path) -> list[int]:
    """Sorted, so that in general parents come first."""
    return sorted(read_members(str(group)))


def _is_still(pid: int) -> bool:
    """Whether every thread of a process is stopped or dead."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        states = [
            Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b") ")[2][:1]
            for thread in threads
        ]
    except OSError:
        return True
    return all(state in b"TtZX" for state in states)


def _signal_member(group: Path, pid: int, number: signal.Signals) -> bool:
    """Signal one process if it is still of the group: its number may be another's by now."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if pid not in _members(group):
            return False
        signal.pidfd_send_signal(pidfd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def _wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not is_so() and time.monotonic() < end_s:
        time.sleep(_PAUSE_S)
