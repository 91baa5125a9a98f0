"""Locks on files and directories that the kernel releases when their holder dies (flock)."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def lock_file(path: Path, *, wait: bool = False) -> int | None:
    """Descriptor of the locked file, made if missing; None when somebody else holds the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return _locked(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def try_lock(path: Path) -> int | None:
    """The same of a file or directory that must be there, without waiting."""
    return _locked(os.open(path, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock; also True for a file that is not there (yet)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    found = _locked(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    if found is not None:
        os.close(found)
    return found is None


@contextlib.contextmanager
def holding(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Wait for the lock of a file, made if missing, and hold it for the length of the block."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _locked(fd: int, operation: int) -> int | None:
    """The descriptor, or None after closing it because somebody else holds the lock."""
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
