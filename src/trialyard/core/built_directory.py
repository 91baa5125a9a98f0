"""Directories that are built once and shared by processes, such as a layer in a cache.

Built in a private place and renamed when whole, so nobody ever sees a part; losing the race is
success. A killed builder's remains go with the next build, a directory that lost or lacks
bytes is built anew, and nobody waits for anybody's build.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trialyard.core.locks import holding, is_locked, try_lock

_MANIFEST = ".manifest.json"
_LOCK = ".lock"
"""Held for moments: nobody else makes, moves or sweeps directories meanwhile."""


def built_directory(target: Path, build: Callable[[Path], object]) -> Path:
    """`target`, filled by `build(directory)` if it is not there whole. Raises what that raises."""
    if _is_whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _private(target) as partial:
        build(partial)
        (partial / _MANIFEST).write_text(json.dumps(_sizes(partial)))
        with holding(target.parent / _LOCK):
            if not _is_whole(target):
                if target.exists():
                    _remove(target)
                partial.rename(target)
    return target


def _sizes(directory: Path) -> dict[str, int]:
    """Regular files below, but for the manifest, with their sizes."""
    return {
        str(path.relative_to(directory)): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != _MANIFEST
    }


def _is_whole(directory: Path) -> bool:
    try:
        expected = json.loads((directory / _MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return bool(_sizes(directory) == expected)


@contextlib.contextmanager
def _private(target: Path) -> Iterator[Path]:
    """A directory beside `target` that is locked as long as its maker lives, and then goes."""
    prefix = f".{target.name}."
    with holding(target.parent / _LOCK):
        for old in target.parent.glob(f"{prefix}*"):
            if not is_locked(old):
                _remove(old)
        partial = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        fd = try_lock(partial)
    try:
        yield partial
    finally:
        _remove(partial)
        if fd is not None:
            os.close(fd)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
