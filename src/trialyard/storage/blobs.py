"""Blobs in a directory: content-addressed, written whole, verified on read.

Layout: ``ROOT/ab/cdef...`` (SHA-256 in hex, first two digits as folder) and
``ROOT/tmp`` for files being written. Any number of processes may write at once: a
name appears by rename only, so a reader sees a whole blob or none.
"""

import contextlib
import re
import time
from pathlib import Path

from trialyard.core.durable import make_directory, replace_file
from trialyard.core.errors import NotFoundError, StoreError, UserError
from trialyard.core.ids import bytes_hash

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LEFTOVER_AGE_S = 3600.0


class DirectoryBlobs:
    """`BlobStore` in a local directory, created when missing."""

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root)
        self._scratch = self._root / "tmp"
        try:
            make_directory(self._scratch)
            self._remove_leftovers()
        except OSError as error:
            raise StoreError(f"blob directory {self._root} cannot be used: {error}") from error

    def put(self, data: bytes) -> str:
        digest = bytes_hash(data)
        path = self._path(digest)
        try:
            if path.is_file() and path.read_bytes() == data:
                return digest
            make_directory(path.parent)
            replace_file(path, data, scratch=self._scratch)
        except OSError as error:
            raise StoreError(
                f"blob {digest} was not stored in {self._root}: {error}; free some space or "
                "choose another directory, then try again"
            ) from error
        return digest

    def get(self, digest: str) -> bytes:
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise NotFoundError(
                f"blob {digest} is not in {self._root}; it was removed or belongs to another store"
            ) from None
        except OSError as error:
            raise StoreError(f"blob {digest} could not be read from {path}: {error}") from error
        if bytes_hash(data) != digest:
            raise StoreError(
                f"blob {digest} is corrupt: {path} holds other bytes than were stored "
                f"({len(data)} bytes); restore the file from a copy, or store the same content "
                "again, which replaces it"
            )
        return data

    def has(self, digest: str) -> bool:
        return self._path(digest).is_file()

    def remove(self, digest: str) -> None:
        try:
            self._path(digest).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"blob {digest} could not be removed: {error}") from error

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise UserError(f"{digest!r} is not a digest: 64 hexadecimal digits are expected")
        return self._root / digest[:2] / digest[2:]

    def _remove_leftovers(self) -> None:
        """Drop what killed writers left; a younger file may belong to a live one."""
        oldest_s = time.time() - _LEFTOVER_AGE_S
        for path in self._scratch.glob("*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest_s:
                    path.unlink()
