"""File trees on disk as path -> content, read without following any link."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from trialyard.core.errors import TaskError

MAX_FILES = 10_000
MAX_FILE_BYTES = 32 << 20
MAX_TREE_BYTES = 128 << 20


def read_file(path: Path) -> bytes:
    """Content of a regular file. Raises `TaskError` for a link, another kind, or too big."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "is a link; put the file itself there" if path.is_symlink() else error.strerror
        raise TaskError(f"{path}: {reason}") from error
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise TaskError(f"{path}: not a regular file; remove it from the task")
        if status.st_size > MAX_FILE_BYTES:
            raise TaskError(
                f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; put it into the image"
            )
        return file.read(MAX_FILE_BYTES + 1)


def read_tree(root: Path) -> dict[str, bytes]:
    """Every file below `root`; a missing directory is an empty tree."""
    if root.is_symlink():
        raise TaskError(f"{root}: is a link; put the directory itself there")
    if not root.exists():
        return {}
    files: dict[str, bytes] = {}
    total_bytes = 0
    for path in _walk(root):
        data = read_file(path)
        total_bytes += len(data)
        files[path.relative_to(root).as_posix()] = data
        if len(files) > MAX_FILES or total_bytes > MAX_TREE_BYTES:
            raise TaskError(
                f"{root}: more than {MAX_FILES} files or {MAX_TREE_BYTES >> 20} MiB; "
                "put large data into the image"
            )
    return files


def _walk(directory: Path) -> list[Path]:
    found: list[Path] = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            found += _walk(Path(entry.path))
        else:
            found.append(Path(entry.path))
    return found


def write_tree(root: Path, files: Mapping[str, bytes]) -> None:
    """Write a tree below a fresh `root`; no directory is made for an empty one."""
    for name, data in files.items():
        path = root / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise TaskError(f"{name!r}: a task's file must lie below its directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if name.endswith(".sh"):
            path.chmod(0o755)
