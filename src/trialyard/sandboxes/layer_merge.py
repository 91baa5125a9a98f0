"""Many layers flattened into one, so that a chain of snapshots stays short.

Files are hard links to those of the merged layers, which nobody writes. What a layer deleted or
replaced is left out; a mark that it was stays only where still older layers lie below.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from trialyard.sandboxes.layer_walk import OPAQUE_XATTR

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Found:
    """One name in one of the layers: its directory there, and what it is."""

    parent_fd: int
    name: str
    status: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_whiteout(self) -> bool:
        return stat.S_ISCHR(self.status.st_mode)


def merge_layers(layer_fds: Sequence[int], target_fd: int, *, has_lowers: bool) -> None:
    """Rebuild `layer_fds` (topmost first) as one layer in an empty directory. Raises OSError."""
    names = sorted({name for fd in layer_fds for name in os.listdir(fd)})
    for name in names:
        found = _find(layer_fds, name)
        if found[0].is_whiteout:
            if has_lowers:
                _link(found[0], target_fd)
        elif found[0].is_directory:
            _merge_directory(found, target_fd, has_lowers=has_lowers)
        else:
            _link(found[0], target_fd)


def _find(layer_fds: Sequence[int], name: str) -> list[_Found]:
    """Where `name` is in the layers, topmost first."""
    found = []
    for fd in layer_fds:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            found.append(_Found(fd, name, status))
    return found


def _merge_directory(found: Sequence[_Found], target_fd: int, *, has_lowers: bool) -> None:
    """One directory out of those of the same name, down to where older ones are hidden."""
    with contextlib.ExitStack() as stack:
        fds: list[int] = []
        hides_older = False
        for each in found:
            if not each.is_directory:
                hides_older = True
                break
            fd = os.open(each.name, _DIRECTORY, dir_fd=each.parent_fd)
            stack.callback(os.close, fd)
            fds.append(fd)
            hides_older = _is_opaque(fd)
            if hides_older:
                break
        top = found[0]
        os.mkdir(top.name, 0o700, dir_fd=target_fd)
        made_fd = os.open(top.name, _DIRECTORY, dir_fd=target_fd)
        stack.callback(os.close, made_fd)
        merge_layers(fds, made_fd, has_lowers=has_lowers and not hides_older)
        _copy_look(fds[0], made_fd, top.status, is_opaque=has_lowers and hides_older)


def _is_opaque(fd: int) -> bool:
    return OPAQUE_XATTR in os.listxattr(fd)


def _copy_look(source_fd: int, fd: int, status: os.stat_result, *, is_opaque: bool) -> None:
    os.fchown(fd, status.st_uid, status.st_gid)
    os.fchmod(fd, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(source_fd):
        if name.startswith("user."):
            os.setxattr(fd, name, os.getxattr(source_fd, name))
    if is_opaque:
        os.setxattr(fd, OPAQUE_XATTR, b"y")
    os.utime(fd, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _link(found: _Found, target_fd: int) -> None:
    try:
        os.link(
            found.name, found.name, src_dir_fd=found.parent_fd, dst_dir_fd=target_fd,
            follow_symlinks=False,
        )  # fmt: skip
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        _copy_file(found, target_fd)


def _copy_file(found: _Found, target_fd: int) -> None:
    """A file that has as many names as its file system allows."""
    source_fd = os.open(found.name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=found.parent_fd)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    target = os.open(found.name, flags, 0o600, dir_fd=target_fd)
    with os.fdopen(source_fd, "rb") as reader, os.fdopen(target, "wb") as writer:
        shutil.copyfileobj(reader, writer)
        writer.flush()
        _copy_look(source_fd, target, found.status, is_opaque=False)
