"""Acting on files as the box's user, and opening paths that cannot lead out of the box.

The supervisor is root; whatever it opens in a box it opens with the file-system identity of
the box's user, so that a link to /proc/sysrq-trigger or to somebody else's file is refused
by the kernel as it would be for the box itself. Identity is per thread and is restored
before anything else runs: no await inside.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_OPENAT2 = 437
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159}[os.uname().machine]

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_in_root(root_fd: int, path: str, flags: int, *, mode: int = 0, resolve: int = 0) -> int:
    """openat2 in `root_fd`: links stay inside, and nothing that is opened ever blocks."""
    how = _OpenHow(
        flags | os.O_CLOEXEC | (0 if flags & os.O_PATH else os.O_NONBLOCK | os.O_NOCTTY),
        mode,
        resolve or (RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS),
    )
    fd: int = _libc.syscall(
        _SYS_OPENAT2, root_fd, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)
    )
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd


def _set_groups(groups: list[int]) -> None:
    """Of this thread alone; os.setgroups would change every thread."""
    array = (ctypes.c_uint32 * len(groups))(*groups)
    if _libc.syscall(_SYS_SETGROUPS, len(groups), array) != 0:
        raise OSError(ctypes.get_errno(), "setgroups")


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Files are opened and made as `uid`; its capabilities over files are off meanwhile."""
    groups = os.getgroups()
    if groups:
        _set_groups([])
    _libc.setfsgid(uid)
    _libc.setfsuid(uid)
    try:
        yield
    finally:
        _libc.setfsuid(os.geteuid())
        _libc.setfsgid(os.getegid())
        if groups:
            _set_groups(groups)
