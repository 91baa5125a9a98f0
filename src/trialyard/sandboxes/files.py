"""Files of one box, as its supervisor reads and writes them.

Invariants: every path is resolved inside the box's root; no FIFO, device or socket can make
the supervisor block; sizes, counts and depth are bounded; what is made belongs to the box's
user and counts against its quota. Everything here is synchronous and short.
"""

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping
from typing import Literal

from trialyard.core.errors import FileAccessError, UserError
from trialyard.core.process import PtySize
from trialyard.core.sandbox import FileStat
from trialyard.sandboxes.identity import (
    RESOLVE_BENEATH,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    acting_as,
    open_in_root,
)
from trialyard.sandboxes.streams import Ends
from trialyard.sandboxes.terminal import terminal_ends

MAX_DEPTH = 64
_MAX_ENTRIES = 65_536
_CHUNK_BYTES = 1 << 20
_ONLY_OWN_TREE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
_WITHIN_TREE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
"""For whatever is changed: the box's own file system, so never /proc or an image."""
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


@contextlib.contextmanager
def _explained(action: str, path: str) -> Iterator[None]:
    """OSError -> FileAccessError that says what was tried on which path of the box."""
    try:
        yield
    except FileAccessError:
        raise
    except OSError as error:
        raise FileAccessError(
            error.errno, f"cannot {action} {path!r} in the box: {error.strerror}"
        ) from error


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(fd)


def _kind(mode: int) -> Literal["file", "directory", "link", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


class BoxFiles:
    """File operations below `root_fd`, an open directory that is the root of the box."""

    def __init__(self, root_fd: int, uids: range, workdir: str) -> None:
        """`uids` are the host ids of the box; several mean that the first is root inside."""
        self._root_fd = root_fd
        self._uids = uids
        self._uid = uids.start
        self._workdir = workdir

    def absolute(self, path: str) -> str:
        """The path from the box's root. Raises `UserError` when it cannot be one."""
        if not path or "\0" in path:
            raise UserError(f"path {path!r}: must not be empty or hold NUL")
        return posixpath.normpath(posixpath.join(self._workdir, path))

    def open_terminal(self, size: PtySize) -> Ends:
        """A new terminal of the box's user. Raises `SandboxError`."""
        with acting_as(self._uid):
            return terminal_ends(self._root_fd, size)

    @contextlib.contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[int]:
        """Open something to look at, with the rights of the box's user."""
        fd = self._open_as_root(path, flags)
        if fd >= 0:
            with _closing(fd):
                yield fd
            return
        with acting_as(self._uid):
            fd = open_in_root(self._root_fd, path, flags)
            with _closing(fd):
                yield fd

    @contextlib.contextmanager
    def _changing(self, path: str) -> Iterator[int]:
        """Open the parent of what is changed, with the rights of the box's user."""
        fd = self._open_as_root(posixpath.dirname(path), os.O_PATH | os.O_DIRECTORY)
        if fd >= 0:
            with _closing(fd):
                yield fd
            return
        with acting_as(self._uid), self._parent(path) as fd:
            yield fd

    def _open_as_root(self, path: str, flags: int) -> int:
        """Root inside may do anything in the box's own tree, whoever owns what.

        So the supervisor does it as root, but there alone and through no link; -1 elsewhere.
        """
        if len(self._uids) == 1:
            return -1
        try:
            return open_in_root(
                self._root_fd, path.strip("/") or ".", flags, resolve=_ONLY_OWN_TREE
            )
        except OSError:
            return -1

    # --- reading ------------------------------------------------------------------------

    def read(self, path: str, max_bytes: int) -> bytes:
        path = self.absolute(path)
        with _explained("read", path), self._opened(path, os.O_RDONLY) as fd:
            return self._read_regular(fd, path, max_bytes)

    def _read_regular(self, fd: int, path: str, max_bytes: int) -> bytes:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileAccessError(
                errno.EINVAL, f"cannot read {path!r} in the box: a {_kind(status.st_mode)}, no file"
            )
        chunks, total = [], 0
        while chunk := os.read(fd, min(_CHUNK_BYTES, max_bytes + 1 - total)):
            chunks.append(chunk)
            total += len(chunk)
            if total > max_bytes:
                raise FileAccessError(
                    errno.EFBIG, f"{path!r} in the box holds more than {max_bytes} bytes"
                )
        return b"".join(chunks)

    def stat(self, path: str) -> FileStat:
        path = self.absolute(path)
        with _explained("look at", path), self._opened(path, os.O_PATH | os.O_NOFOLLOW) as fd:
            return _file_stat(path, os.fstat(fd))

    def list(self, path: str) -> list[FileStat]:
        path = self.absolute(path)
        flags = os.O_RDONLY | os.O_DIRECTORY
        with _explained("list", path), self._opened(path, flags) as fd:
            names = os.listdir(fd)
            if len(names) > _MAX_ENTRIES:
                raise FileAccessError(
                    errno.EFBIG, f"{path!r} in the box has more than {_MAX_ENTRIES} entries"
                )
            found = []
            for name in sorted(names):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    found.append(_file_stat(posixpath.join(path, name), status))
            return found

    def download(self, directory: str, max_bytes: int, max_files: int) -> dict[str, bytes]:
        directory = self.absolute(directory)
        collected = _Collected(directory, max_bytes, max_files)
        flags = os.O_RDONLY | os.O_DIRECTORY
        with _explained("download", directory), self._opened(directory, flags) as fd:
            self._collect(fd, "", 0, collected)
        return collected.files

    def _collect(self, directory_fd: int, prefix: str, depth: int, into: "_Collected") -> None:
        if depth > MAX_DEPTH:
            raise FileAccessError(
                errno.ELOOP, f"{into.directory!r} in the box is nested deeper than {MAX_DEPTH}"
            )
        for name in sorted(os.listdir(directory_fd)):
            into.count_entry()
            mode = _mode_of(directory_fd, name)
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                continue
            flags = os.O_RDONLY | (os.O_DIRECTORY if stat.S_ISDIR(mode) else 0)
            try:
                fd = open_in_root(directory_fd, name, flags, resolve=_ONLY_OWN_TREE)
            except OSError:
                continue  # unreadable for the box's own user, or changed under our eyes
            try:
                if stat.S_ISDIR(mode):
                    self._collect(fd, f"{prefix}{name}/", depth + 1, into)
                elif stat.S_ISREG(os.fstat(fd).st_mode):
                    into.add(prefix + name, self._read_regular(fd, prefix + name, into.room))
            finally:
                os.close(fd)

    # --- writing ------------------------------------------------------------------------

    def write(self, path: str, data: bytes, mode: int) -> None:
        path = self.absolute(path)
        with _explained("write", path):
            fd = self._create(path, mode)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise FileAccessError(
                        errno.EINVAL,
                        f"cannot write {path!r} in the box: a {_kind(status.st_mode)} is there",
                    )
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if stat.S_IMODE(status.st_mode) != mode & 0o777:
                    os.fchmod(fd, mode & 0o777)
            finally:
                os.close(fd)

    def _create(self, path: str, mode: int) -> int:
        """Open for writing as the box's user, making parents and replacing a link."""
        mode &= 0o777
        for _ in range(8):
            try:
                with acting_as(self._uid):
                    return open_in_root(
                        self._root_fd, path, _WRITE, mode=mode, resolve=_WITHIN_TREE
                    )
            except FileNotFoundError:
                self.make_directory(posixpath.dirname(path))
            except PermissionError:
                return self._create_for_user(path, mode)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                with self._changing(path) as parent_fd:
                    os.unlink(posixpath.basename(path), dir_fd=parent_fd)
        raise OSError(errno.ELOOP, "the path changes all the time", path)

    def _create_for_user(self, path: str, mode: int) -> int:
        """Where the box's user may not write: only in the box's own tree, without any link."""
        fd = open_in_root(
            self._root_fd, path.lstrip("/"), _WRITE, mode=mode, resolve=_ONLY_OWN_TREE
        )
        if os.fstat(fd).st_uid not in self._uids:
            os.fchown(fd, self._uid, self._uid)
        return fd

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[int]:
        fd = open_in_root(
            self._root_fd,
            posixpath.dirname(path),
            os.O_PATH | os.O_DIRECTORY,
            resolve=_WITHIN_TREE,
        )
        try:
            yield fd
        finally:
            os.close(fd)

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; each new one belongs to the box's user."""
        at = ""
        for part in path.strip("/").split("/"):
            parent, at = at or "/", f"{at}/{part}"
            try:
                with acting_as(self._uid), self._parent(at) as parent_fd:
                    os.mkdir(part, 0o755, dir_fd=parent_fd)
            except FileExistsError:
                continue
            except PermissionError:
                self._make_directory_for_user(parent, part)

    def _make_directory_for_user(self, parent: str, name: str) -> None:
        fd = open_in_root(
            self._root_fd,
            parent.lstrip("/") or ".",
            os.O_PATH | os.O_DIRECTORY,
            resolve=_ONLY_OWN_TREE,
        )
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
                os.chown(name, self._uid, self._uid, dir_fd=fd, follow_symlinks=False)
        finally:
            os.close(fd)

    def upload(self, files: Mapping[str, bytes], directory: str) -> None:
        directory = self.absolute(directory)
        for name in files:
            if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name:
                raise UserError(f"upload path {name!r}: must be relative, without '..' or NUL")
        with _explained("write", directory):
            self.make_directory(directory)
        for name, data in files.items():
            self.write(f"{directory}/{name}", data, 0o644)

    def remove(self, path: str) -> None:
        path = self.absolute(path)
        if path == "/":
            raise UserError("path '/': the root of a box cannot be removed")
        missing_is_fine = contextlib.suppress(FileNotFoundError)
        with _explained("remove", path), missing_is_fine, self._changing(path) as parent_fd:
            remove_tree(parent_fd, posixpath.basename(path))


def remove_tree(parent_fd: int, name: str) -> None:
    """Remove one entry, however deep. Directories too deep to hold open are moved up first."""
    while True:
        try:
            _remove_below(parent_fd, name, parent_fd, 0)
            return
        except _MovedUp as moved:
            remove_tree(parent_fd, moved.name)


class _MovedUp(Exception):
    """A directory nested too deep was moved to the top under this name."""

    def __init__(self, name: str) -> None:
        self.name = name


def _remove_below(parent_fd: int, name: str, top_fd: int, depth: int) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent_fd)
        return
    if depth >= MAX_DEPTH:
        moved = f".removing-{os.urandom(8).hex()}"
        os.rename(name, moved, src_dir_fd=parent_fd, dst_dir_fd=top_fd)
        raise _MovedUp(moved)
    fd = _open_to_empty(parent_fd, name)
    try:
        for entry in os.listdir(fd):
            with contextlib.suppress(FileNotFoundError):
                _remove_below(fd, entry, top_fd, depth + 1)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent_fd)


def _open_to_empty(parent_fd: int, name: str) -> int:
    try:
        fd = open_in_root(parent_fd, name, os.O_RDONLY | os.O_DIRECTORY, resolve=_ONLY_OWN_TREE)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent_fd)
        fd = open_in_root(parent_fd, name, os.O_RDONLY | os.O_DIRECTORY, resolve=_ONLY_OWN_TREE)
    if not os.fstat(fd).st_mode & stat.S_IWUSR:
        os.fchmod(fd, 0o700)
    return fd


def _mode_of(directory_fd: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _file_stat(path: str, status: os.stat_result) -> FileStat:
    return FileStat(path, _kind(status.st_mode), status.st_size, stat.S_IMODE(status.st_mode))


class _Collected:
    """A bounded collection of files."""

    def __init__(self, directory: str, max_bytes: int, max_files: int) -> None:
        self.directory = directory
        self.room = max_bytes
        self.files: dict[str, bytes] = {}
        self._max_files = max_files
        self._num_entries = 0

    def count_entry(self) -> None:
        self._num_entries += 1
        if self._num_entries > _MAX_ENTRIES:
            raise FileAccessError(
                errno.EFBIG, f"{self.directory!r} in the box has more than {_MAX_ENTRIES} entries"
            )

    def add(self, path: str, data: bytes) -> None:
        if len(self.files) >= self._max_files:
            raise FileAccessError(
                errno.EFBIG, f"{self.directory!r} in the box has more than {self._max_files} files"
            )
        self.files[path] = data
        self.room -= len(data)
