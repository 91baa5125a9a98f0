"""Files that survive a crash: replaced whole, and on the disk before the call returns."""

import os
import secrets
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable (a new file needs this besides its own fsync)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create a directory with its parents; every new name is durable."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def replace_file(path: Path, data: bytes, *, scratch: Path | None = None) -> None:
    """Write a whole file so that readers see the old content or the new, never a part.

    The temporary file lies in `scratch` (default: beside `path`; same file system) and
    ends in ``.tmp``. Raises OSError.
    """
    temporary = (scratch or path.parent) / f"{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
