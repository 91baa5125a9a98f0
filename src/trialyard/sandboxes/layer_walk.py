"""Walking the tree of a layer that somebody else may change meanwhile.

Every step is from an open directory to one name in it: no link is followed, no mount is
crossed, nothing that is opened blocks. What is found is bounded in entries, bytes (sparse files
count in full) and depth, and each is named when it is passed. Order is canonical: depth
first, the names of a directory sorted as bytes.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from trialyard.core.errors import SnapshotRefused
from trialyard.sandboxes.identity import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    open_in_root,
)
from trialyard.sandboxes.tar_format import WHITEOUT_PREFIX, Entry, Kind

OPAQUE_XATTR = "trusted.overlay.opaque"
_OWN_TREE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ENXIO)
"""Changed under our eyes, or not of this tree: left out."""
_MAX_TARGET_BYTES = 4000
"""The kernel takes no longer path at once; files with longer names are copied, not linked."""


@dataclass(frozen=True, slots=True)
class LayerLimits:
    """How much a layer may hold."""

    num_bytes: int = 1 << 40
    num_entries: int = 1 << 24
    depth: int = 64


@dataclass(slots=True)
class LayerWalk:
    """Iterates over (entry, descriptor); the descriptor is -1 but for files, and is closed here.

    `owner` gives the id to record for one found on disk. `skip` holds paths that are left out
    with all below them. `has_lowers` says that whiteouts and opaque directories mean something.
    Raises `SnapshotRefused` beyond `limits`, and for names that layers cannot have.
    """

    root_fd: int
    owner: Callable[[int], int]
    limits: LayerLimits = LayerLimits()
    skip: frozenset[bytes] = frozenset()
    has_lowers: bool = True
    num_entries: int = 0
    num_bytes: int = 0
    _first_names: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[Entry, int]]:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.root_fd)
        try:
            yield from self._directory(fd, b"", 1)
        finally:
            os.close(fd)

    def _directory(self, fd: int, prefix: bytes, depth: int) -> Iterator[tuple[Entry, int]]:
        for name in sorted(map(os.fsencode, os.listdir(fd))):
            path = prefix + name
            if path in self.skip:
                continue
            try:
                yield from self._entry(fd, name, path, depth)
            except OSError as error:
                if error.errno not in _GONE:
                    raise

    def _entry(
        self, directory_fd: int, name: bytes, path: bytes, depth: int
    ) -> Iterator[tuple[Entry, int]]:
        status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        kind = self._kind_of(status)
        if kind is None:
            return
        if name.startswith(WHITEOUT_PREFIX):
            raise SnapshotRefused(
                f"{os.fsdecode(path)!r} in the box: layers of images reserve names that begin "
                "with '.wh.'; rename or remove it"
            )
        self._count(path, depth)
        if kind in (Kind.FILE, Kind.DIRECTORY):
            yield from self._opened(directory_fd, name, path, depth, kind)
        elif kind is Kind.WHITEOUT:
            yield Entry(path, kind), -1
        else:
            target = os.readlink(name, dir_fd=directory_fd) if kind is Kind.LINK else b""
            yield self._describe(path, kind, status, target=target), -1

    def _opened(
        self, directory_fd: int, name: bytes, path: bytes, depth: int, kind: Kind
    ) -> Iterator[tuple[Entry, int]]:
        flags = os.O_RDONLY | (os.O_DIRECTORY if kind is Kind.DIRECTORY else 0)
        fd = open_in_root(directory_fd, os.fsdecode(name), flags, resolve=_OWN_TREE)
        try:
            status = os.fstat(fd)
            if self._kind_of(status) is not kind:
                return
            if kind is Kind.DIRECTORY:
                is_opaque = self.has_lowers and _xattr(fd, OPAQUE_XATTR) == b"y"
                entry = self._describe(path, kind, status, fd=fd, is_opaque=is_opaque)
                yield entry, -1
                yield from self._directory(fd, path + b"/", depth + 1)
                return
            first = self._first_name(status, path)
            if first != path:
                yield self._describe(path, Kind.HARD_LINK, status, target=first), -1
            else:
                yield self._describe(path, kind, status, fd=fd), fd
        finally:
            os.close(fd)

    def _first_name(self, status: os.stat_result, path: bytes) -> bytes:
        """The name under which the same file was passed before, else `path`."""
        if status.st_nlink == 1 or len(path) > _MAX_TARGET_BYTES:
            return path
        return self._first_names.setdefault((status.st_dev, status.st_ino), path)

    def _kind_of(self, status: os.stat_result) -> Kind | None:
        """None for what no layer holds: sockets and devices."""
        mode = status.st_mode
        if stat.S_ISCHR(mode):
            return Kind.WHITEOUT if self.has_lowers and status.st_rdev == 0 else None
        return _KINDS.get(stat.S_IFMT(mode))

    def _describe(
        self,
        path: bytes,
        kind: Kind,
        status: os.stat_result,
        *,
        fd: int = -1,
        target: bytes = b"",
        is_opaque: bool = False,
    ) -> Entry:
        xattrs = _user_xattrs(fd) if fd >= 0 else ()
        num_bytes = status.st_size if kind is Kind.FILE else 0
        self.num_bytes += num_bytes + len(target) + sum(len(value) for _, value in xattrs)
        if self.num_bytes > self.limits.num_bytes:
            raise SnapshotRefused(
                f"{os.fsdecode(path)!r} in the box: with it the layer holds more than the limit of "
                f"{self.limits.num_bytes} bytes (sparse files count in full); remove some"
            )
        return Entry(
            path, kind, stat.S_IMODE(status.st_mode), self.owner(status.st_uid),
            self.owner(status.st_gid), status.st_mtime_ns, num_bytes, target, xattrs, is_opaque,
        )  # fmt: skip

    def _count(self, path: bytes, depth: int) -> None:
        self.num_entries += 1
        for name, found, limit in (
            ("entries", self.num_entries, self.limits.num_entries),
            ("depth", depth, self.limits.depth),
        ):
            if found > limit:
                raise SnapshotRefused(
                    f"{os.fsdecode(path[-200:])!r} in the box passes the limit on {name} of a "
                    f"layer ({limit}); remove some"
                )


_KINDS: Mapping[int, Kind] = {
    stat.S_IFREG: Kind.FILE,
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFLNK: Kind.LINK,
    stat.S_IFIFO: Kind.FIFO,
}


def _user_xattrs(fd: int) -> tuple[tuple[str, bytes], ...]:
    """The user's own attributes, but none that an overlay of users would obey."""
    names = (name for name in os.listxattr(fd) if name.startswith("user."))
    return tuple(
        (name, os.getxattr(fd, name))
        for name in sorted(names)
        if not name.startswith("user.overlay.")
    )


def _xattr(fd: int, name: str) -> bytes:
    try:
        return os.getxattr(fd, name)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return b""
