"""Tar as it is written here: the pax form, one canonical header for equal entries.

Names and targets are bytes and stay what they are. Layers use it in the form of the Open
Container Initiative: what is deleted stands as an empty file ``.wh.NAME``, and a directory
that hides all below it in older layers holds ``.wh..wh..opq``.
"""

import os
import tarfile
from dataclasses import dataclass
from enum import Enum

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
WHITEOUT_PREFIX = b".wh."
OPAQUE_NAME = b".wh..wh..opq"
_XATTR_KEY = "SCHILY.xattr."


class Kind(Enum):
    """What an entry of a tree is; the value is its type flag in tar."""

    FILE = tarfile.REGTYPE
    DIRECTORY = tarfile.DIRTYPE
    LINK = tarfile.SYMTYPE
    HARD_LINK = tarfile.LNKTYPE
    FIFO = tarfile.FIFOTYPE
    WHITEOUT = b"whiteout"
    """A name that older layers have and this one has not."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a tree. `path` is relative, without ``..``; `target` is of links."""

    path: bytes
    kind: Kind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    num_bytes: int = 0
    target: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    is_opaque: bool = False


def header(entry: Entry) -> bytes:
    """The blocks that stand before the content of an entry, its opaque mark included."""
    if entry.kind is Kind.WHITEOUT:
        directory, slash, name = entry.path.rpartition(b"/")
        return _mark(directory + slash + WHITEOUT_PREFIX + name)
    blocks = _blocks(entry)
    if entry.is_opaque:
        blocks += _mark(entry.path + b"/" + OPAQUE_NAME)
    return blocks


def padding(num_bytes: int) -> bytes:
    """What fills the last block of a content."""
    return bytes(-num_bytes % BLOCK_BYTES)


def _mark(path: bytes) -> bytes:
    """An empty file that stands for something missing."""
    return _blocks(Entry(path, Kind.FILE))


def _blocks(entry: Entry) -> bytes:
    info = tarfile.TarInfo(os.fsdecode(entry.path))
    info.type = entry.kind.value
    info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
    info.size, info.linkname = entry.num_bytes, os.fsdecode(entry.target)
    seconds, rest_ns = divmod(entry.mtime_ns, 10**9)
    info.mtime = seconds
    extra = {_XATTR_KEY + name: os.fsdecode(value) for name, value in entry.xattrs}
    if rest_ns:
        extra["mtime"] = f"{seconds}.{rest_ns:09}".rstrip("0")
    info.pax_headers = extra
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
