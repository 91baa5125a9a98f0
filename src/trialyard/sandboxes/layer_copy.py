"""A layer as bytes and as a directory: its digest, its archive, and a copy that boxes mount.

The digest is the SHA-256 of the canonical archive, which is what image layers call their diff
id. In the directory whiteouts are device 0:0 and opaque directories carry overlay's attribute,
so that it serves as an overlay lower as it is. Sparse files stay sparse there.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import Protocol

from trialyard.sandboxes.layer_walk import OPAQUE_XATTR, LayerWalk
from trialyard.sandboxes.tar_format import END, Entry, Kind, header, padding

CHUNK_BYTES = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Sink(Protocol):
    """Takes a piece of a file's content; `is_hole` means that it is all zeros on no disk."""

    def __call__(self, data: bytes, /, *, is_hole: bool) -> None: ...


def copy_layer(walk: LayerWalk, target_fd: int, *, go_on: Callable[[], None]) -> str:
    """Copy what `walk` finds below `target_fd`; returns the digest of the layer.

    `go_on` is called between pieces and may raise to stop. Raises OSError.
    """
    digest = hashlib.sha256()
    with contextlib.closing(_TreeWriter(target_fd)) as writer:
        for entry, fd in walk:
            go_on()
            digest.update(header(entry))
            with writer.add(entry) as write:
                for data, is_hole in _content(fd, entry.num_bytes):
                    go_on()
                    digest.update(data)
                    write(data, is_hole=is_hole)
            digest.update(padding(entry.num_bytes))
    digest.update(END)
    return digest.hexdigest()


def layer_archive(directory_fd: int) -> Iterator[bytes]:
    """The canonical archive of a stored layer, in pieces of at most `CHUNK_BYTES`."""
    for entry, fd in LayerWalk(directory_fd, owner=lambda id: id):
        yield header(entry)
        for data, _ in _content(fd, entry.num_bytes):
            yield data
        yield padding(entry.num_bytes)
    yield END


def layer_digest(directory_fd: int) -> str:
    """SHA-256 (hex) of the canonical archive of a stored layer."""
    digest = hashlib.sha256()
    for piece in layer_archive(directory_fd):
        digest.update(piece)
    return digest.hexdigest()


def _content(fd: int, num_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Exactly `num_bytes` of a file, holes as zeros; a file that shrank ends in zeros."""
    at = 0
    while at < num_bytes:
        data_at = _next_data(fd, at, num_bytes)
        while at < data_at:
            size = min(CHUNK_BYTES, data_at - at)
            yield bytes(size), True
            at += size
        if at < num_bytes:
            data = os.pread(fd, min(CHUNK_BYTES, num_bytes - at), at)
            if not data:  # it shrank
                data = bytes(min(CHUNK_BYTES, num_bytes - at))
            yield data, False
            at += len(data)


def _next_data(fd: int, at: int, end: int) -> int:
    """Where the next byte lies that is stored; `end` when there is none."""
    try:
        return min(end, os.lseek(fd, at, os.SEEK_DATA))
    except OSError:  # a hole to the end
        return end


class _TreeWriter:
    """Rebuilds entries, given in the order of a walk, below one directory."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._open: list[tuple[Entry, int]] = []
        """The directories from the root to the last entry; their look is set when they close."""

    def close(self) -> None:
        while self._open:
            self._close_last()

    def _close_last(self) -> None:
        entry, fd = self._open.pop()
        try:
            _dress(fd, entry)
        finally:
            os.close(fd)

    def _parent_of(self, path: bytes) -> int:
        while self._open and not path.startswith(self._open[-1][0].path + b"/"):
            self._close_last()
        return self._open[-1][1] if self._open else self._root_fd

    @contextlib.contextmanager
    def add(self, entry: Entry) -> Iterator[_Sink]:
        """Make one entry; its content is written through what this gives."""
        parent_fd, name = self._parent_of(entry.path), entry.path.rpartition(b"/")[2]
        if entry.kind is not Kind.FILE:
            self._add_other(entry, parent_fd, name)
            yield _no_content
            return
        fd = os.open(name, _NEW, 0o600, dir_fd=parent_fd)
        try:
            yield _FileSink(fd)
            os.ftruncate(fd, entry.num_bytes)
            _dress(fd, entry)
        finally:
            os.close(fd)

    def _add_other(self, entry: Entry, parent_fd: int, name: bytes) -> None:
        if entry.kind is Kind.DIRECTORY:
            os.mkdir(name, 0o700, dir_fd=parent_fd)
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
            self._open.append((entry, fd))
        elif entry.kind is Kind.WHITEOUT:
            os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent_fd)
        elif entry.kind is Kind.HARD_LINK:
            os.link(
                entry.target, name, src_dir_fd=self._root_fd, dst_dir_fd=parent_fd,
                follow_symlinks=False,
            )  # fmt: skip
        else:
            if entry.kind is Kind.LINK:
                os.symlink(entry.target, name, dir_fd=parent_fd)
            else:
                os.mkfifo(name, 0o600, dir_fd=parent_fd)
            os.chown(name, entry.uid, entry.gid, dir_fd=parent_fd, follow_symlinks=False)
            if entry.kind is Kind.FIFO:
                os.chmod(name, entry.mode, dir_fd=parent_fd)
            times = (entry.mtime_ns, entry.mtime_ns)
            os.utime(name, ns=times, dir_fd=parent_fd, follow_symlinks=False)


class _FileSink:
    """Writes one piece after the other; holes are left out."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, data: bytes, /, *, is_hole: bool) -> None:
        if is_hole:
            os.lseek(self._fd, len(data), os.SEEK_CUR)
            return
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


def _no_content(data: bytes, /, *, is_hole: bool) -> None:
    """Of what has none."""


def _dress(fd: int, entry: Entry) -> None:
    """Owner, mode, attributes and time; the owner first, since it takes setuid away."""
    os.fchown(fd, entry.uid, entry.gid)
    os.fchmod(fd, entry.mode)
    for name, value in entry.xattrs:
        os.setxattr(fd, name, value)
    if entry.is_opaque:
        os.setxattr(fd, OPAQUE_XATTR, b"y")
    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
