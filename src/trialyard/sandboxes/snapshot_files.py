"""The directory of a `SnapshotStore`: entries that appear whole, locks, and sweeping.

    ROOT/layers/DIGEST/fs     an overlay lower with the ids that the box sees
    ROOT/layers/DIGEST/boot   when it was written; after a reboot it is verified first
    ROOT/names/NAME           manifest; flock'ed by those who use it; mtime = last use
    ROOT/names/NAME.kept      somebody asked for it by name
    ROOT/new                  unfinished, each flock'ed by its writer

It is private to root: files of root's with setuid may lie in it.
"""

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from trialyard.core.errors import (
    NotFoundError,
    ResourceExhausted,
    SandboxUnavailable,
    StoreError,
)
from trialyard.core.ids import content_hash
from trialyard.core.locks import holding, is_locked, try_lock
from trialyard.core.record import Record
from trialyard.sandboxes.files import remove_tree

PREFIX = "snapshot-"
_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{64}}")


class Layer(Record):
    """One layer of a snapshot. Bytes are those of its files' content."""

    digest: str
    num_bytes: int
    num_entries: int


class Manifest(Record):
    """A snapshot: layers, oldest first, on an image. `parent` is where its box came from."""

    base_image: str
    base_digest: str
    layers: tuple[Layer, ...]
    parent: str
    owner: str
    created_s: float

    @property
    def digest(self) -> str:
        return content_hash([self.base_digest, [layer.digest for layer in self.layers]])


class SnapshotDirectory:
    """Below `root`; made, and swept of what killed processes left, by `open`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layers = root / "layers"
        self.names = root / "names"
        self.new = root / "new"
        self._mutex = threading.Lock()
        self._is_open = False

    def open(self) -> None:
        """Make the directory, and sweep what killed processes left. Once for each store."""
        with self._mutex:
            if self._is_open:
                return
            try:
                self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
                self.root.chmod(0o700)
                for directory in (self.layers, self.names, self.new):
                    directory.mkdir(exist_ok=True, mode=0o700)
                self._sweep()
            except OSError as error:
                raise _unusable(self.root, error) from error
            self._is_open = True

    def _sweep(self) -> None:
        with self.locked(shared=False):
            for path in self.names.iterdir():
                if is_snapshot(path.name) and not path.with_name(f"{path.name}.kept").exists():
                    self.remove_name(path)
            leftovers = [path for path in self.new.iterdir() if not is_locked(path)]
        for path in leftovers:
            _remove(path)
        self.remove_unused_layers()

    def locked(self, *, shared: bool) -> AbstractContextManager[None]:
        """Those who add may do it together; who removes is alone."""
        return holding(self.root / "lock", shared=shared)

    def path(self, layer: Layer) -> Path:
        return self.layers / layer.digest / "fs"

    def manifest(self, name: str) -> Manifest:
        try:
            return Manifest.model_validate_json((self.names / name).read_bytes())
        except FileNotFoundError:
            raise missing(name) from None
        except ValueError as error:
            raise StoreError(f"snapshot {name} in {self.names} is damaged: {error}") from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """A private directory that is gone afterwards, and is swept when we are killed."""
        unfinished = self.new / os.urandom(8).hex()
        try:
            with self.locked(shared=True):
                unfinished.mkdir(mode=0o700)
                lock_fd = try_lock(unfinished)
        except OSError as error:
            raise _unusable(self.root, error) from error
        try:
            yield unfinished
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ResourceExhausted(
                    f"no space for a snapshot in {self.root}: {error.strerror}; remove "
                    "snapshots that nobody needs"
                ) from error
            raise _unusable(self.root, error) from error
        finally:
            _remove(unfinished)
            if lock_fd is not None:
                os.close(lock_fd)

    def remove_name(self, path: Path) -> bool:
        """Under the store's lock: True when the name is gone, False when it is in use."""
        fd = try_lock(path)
        if fd is None:
            return False
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}.kept").unlink(missing_ok=True)
        os.close(fd)
        return True

    def remove_unused_layers(self) -> None:
        with self.locked(shared=False):
            used = {layer.digest for found in self._manifests() for layer in found.layers}
            doomed = self.new / f"removed-{os.urandom(8).hex()}"
            doomed.mkdir(mode=0o700)
            for path in self.layers.iterdir():
                if path.name not in used:
                    path.rename(doomed / path.name)
        _remove(doomed)

    def _manifests(self) -> Iterator[Manifest]:
        for path in self.names.iterdir():
            if is_snapshot(path.name):
                yield self.manifest(path.name)


def is_snapshot(image: str) -> bool:
    """Whether an image's name is that of a snapshot."""
    return _NAME.fullmatch(image) is not None


def missing(name: str) -> NotFoundError:
    return NotFoundError(f"{name!r} does not exist, or was removed")


def _unusable(directory: Path, error: OSError) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"cannot keep snapshots in {directory} ({error}); it must be a directory on a local file "
        "system with attributes, such as ext4, xfs, btrfs or tmpfs, that root may write"
    )


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def made_directory(path: Path) -> Iterator[int]:
    """A new directory as boxes see it: their root."""
    path.mkdir(parents=True, mode=0o755)
    path.chmod(0o755)
    with opened(path) as fd:
        yield fd


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), opened(path.parent) as fd:
        remove_tree(fd, path.name)
