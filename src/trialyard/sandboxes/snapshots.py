"""`SnapshotStore`: what boxes changed, saved by content, as layers that other boxes start from.

Invariants: equal content is one entry; entries appear whole, by rename; what is in use is never
removed; what a killed process left goes when the next one opens the store. Several processes
may share it. Methods block unless they say otherwise; call them in a thread.
"""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trialyard.core.durable import replace_file
from trialyard.core.errors import NotFoundError, ResourceExhausted, StoreError
from trialyard.core.image import Image
from trialyard.core.locks import try_lock
from trialyard.sandboxes.layer_copy import copy_layer, layer_digest
from trialyard.sandboxes.layer_merge import merge_layers
from trialyard.sandboxes.layer_walk import LayerWalk
from trialyard.sandboxes.snapshot_files import (
    PREFIX,
    Layer,
    Manifest,
    SnapshotDirectory,
    boot_id,
    is_snapshot,
    made_directory,
    missing,
    opened,
)

MAX_LAYERS = 8
"""Longer chains are flattened: every look-up of a missing name passes all layers."""


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What the store knows of one snapshot. Layers may be shared with others."""

    name: str
    manifest: Manifest
    used_s: float
    is_kept: bool
    is_in_use: bool


class SnapshotStore:
    """Snapshots below one directory, made on first use."""

    def __init__(self, directory: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._files = SnapshotDirectory(directory)
        self._now_s = now_s
        self._mutex = threading.Lock()
        self._holds: dict[str, tuple[int, int]] = {}
        """Name -> (descriptor that holds its lock, how many hold it)."""

    # --- making -------------------------------------------------------------------------

    def capture(
        self,
        walk: LayerWalk,
        image: Image,
        *,
        owner: str,
        keep: bool,
        go_on: Callable[[], None] = lambda: None,
    ) -> str:
        """Save what `walk` finds in a box of `image`; returns a name that is held once.

        Raises `SnapshotRefused`, and `StoreError` or `ResourceExhausted` where this host
        cannot store it.
        """
        self._files.open()
        base_image, base_digest, older, parent = self._origin(image)
        with self._files.writing() as unfinished:
            layer = self._write_layer(unfinished, walk, go_on)
            layers = (*older, layer)
            if len(layers) > MAX_LAYERS:
                layers = (self._flatten(unfinished, older, has_lowers=bool(self._below(image))),)
            manifest = Manifest(
                base_image=base_image, base_digest=base_digest, layers=layers, parent=parent,
                owner=owner, created_s=self._now_s(),
            )  # fmt: skip
            return self._commit(unfinished, manifest, keep=keep)

    def _origin(self, image: Image) -> tuple[str, str, tuple[Layer, ...], str]:
        """Base name and digest, older layers, and parent of a new snapshot."""
        if not is_snapshot(image.name):
            return image.name, image.digest, (), ""
        manifest = self._files.manifest(image.name)
        return manifest.base_image, manifest.base_digest, manifest.layers, image.name

    def _below(self, image: Image) -> tuple[str, ...]:
        """The lowers of an image that are no layers of this store."""
        return tuple(path for path in image.lowers if Path(path).parents[1] != self._files.layers)

    def _write_layer(self, unfinished: Path, walk: LayerWalk, go_on: Callable[[], None]) -> Layer:
        with made_directory(unfinished / "layer" / "fs") as fd:
            digest = copy_layer(walk, fd, go_on=go_on)
        return self._finish(
            unfinished / "layer",
            Layer(digest=digest, num_bytes=walk.num_bytes, num_entries=walk.num_entries),
        )

    def _finish(self, written: Path, layer: Layer) -> Layer:
        """Name a written layer by its digest, still unfinished."""
        (written / "boot").write_text(boot_id())
        final = written.parent / layer.digest
        if not final.exists():
            written.rename(final)
        return layer

    def _flatten(self, unfinished: Path, older: tuple[Layer, ...], *, has_lowers: bool) -> Layer:
        """All layers of a chain, the new one on top, as one."""
        (newest,) = unfinished.iterdir()
        paths = [newest / "fs", *(self._files.path(layer) for layer in reversed(older))]
        with contextlib.ExitStack() as stack:
            fds = [stack.enter_context(opened(path)) for path in paths]
            fd = stack.enter_context(made_directory(unfinished / "merged" / "fs"))
            merge_layers(fds, fd, has_lowers=has_lowers)
            walk = LayerWalk(fd, owner=lambda id: id)
            for _ in walk:
                pass
            digest = layer_digest(fd)
        return self._finish(
            unfinished / "merged",
            Layer(digest=digest, num_bytes=walk.num_bytes, num_entries=walk.num_entries),
        )

    def _commit(self, unfinished: Path, manifest: Manifest, *, keep: bool) -> str:
        name = PREFIX + manifest.digest
        with self._files.locked(shared=True):
            for layer in manifest.layers:
                written, final = unfinished / layer.digest, self._files.layers / layer.digest
                if written.exists():
                    with contextlib.suppress(OSError):  # somebody was faster: the same content
                        written.rename(final)
                if not final.is_dir():
                    raise StoreError(f"layer {layer.digest} is missing in {self._files.layers}")
            path = self._files.names / name
            if not path.exists():
                replace_file(path, manifest.model_dump_json().encode(), scratch=unfinished)
            if keep:
                (self._files.names / f"{name}.kept").touch()
            self.hold(name)
        return name

    # --- using --------------------------------------------------------------------------

    def load(self, name: str, images: Mapping[str, Image]) -> Image:
        """The snapshot as an image. Raises `NotFoundError` when it, or what it stands on, is gone.

        `images` are those that boxes may start from here.
        """
        manifest = self._files.manifest(name)
        base = images.get(manifest.base_image)
        if base is None or base.digest != manifest.base_digest:
            have = f"here it has digest {base.digest[:12]}" if base else "which is not here"
            raise NotFoundError(
                f"{name[:24]}… was taken on image {manifest.base_image!r} with digest "
                f"{manifest.base_digest[:12]}; {have} (the host's own changes with its packages)"
            )
        paths = [str(self._files.path(layer)) for layer in reversed(manifest.layers)]
        return Image(name, manifest.digest, (*paths, *base.lowers), on_host=base.on_host)

    def hold(self, name: str) -> None:
        """Keep a snapshot from being removed until as many calls of `release`.

        Does not block for long. Raises `NotFoundError`.
        """
        with self._mutex:
            fd, count = self._holds.get(name, (-1, 0))
            if count == 0:
                fd = self._lock_name(name)
            self._holds[name] = (fd, count + 1)

    def hold_image(self, image: Image) -> Callable[[], None]:
        """As `hold`, of any image; returns what undoes it, once."""
        if not is_snapshot(image.name):
            return lambda: None
        self.hold(image.name)
        held = [image.name]
        return lambda: self.release(held.pop()) if held else None

    def release(self, name: str) -> None:
        """Undo one `hold`, and note the time of use."""
        with self._mutex:
            fd, count = self._holds.pop(name)
            if count > 1:
                self._holds[name] = (fd, count - 1)
            else:
                os.utime(fd)
                os.close(fd)

    def _lock_name(self, name: str) -> int:
        try:
            fd = os.open(self._files.names / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise missing(name) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)  # others lock it for a moment only, to look or remove
        except BaseException:
            os.close(fd)
            raise
        if os.fstat(fd).st_nlink == 0:
            os.close(fd)
            raise missing(name)
        return fd

    def check_after_boot(self, name: str) -> None:
        """Once after a reboot: what was written before a crash may be half on its disk.

        Raises `StoreError` when a layer is damaged, `NotFoundError`.
        """
        for layer in self._files.manifest(name).layers:
            mark = self._files.layers / layer.digest / "boot"
            if mark.read_text() != boot_id():
                self._check(layer)
                replace_file(mark, boot_id().encode(), scratch=self._files.new)

    def _check(self, layer: Layer) -> None:
        with opened(self._files.path(layer)) as fd:
            digest = layer_digest(fd)
        if digest != layer.digest:
            raise StoreError(
                f"layer {layer.digest} in {self._files.layers} is damaged: its content has digest "
                f"{digest}; remove the snapshots that use it"
            )

    def verify(self, name: str) -> None:
        """Read all of a snapshot. Raises `StoreError` when a layer is not what it was."""
        for layer in self._files.manifest(name).layers:
            self._check(layer)

    # --- looking and removing -----------------------------------------------------------

    def list(self) -> list[SnapshotInfo]:
        """Every snapshot, the one used last at the end."""
        if not self._files.names.is_dir():
            return []
        found = []
        for path in self._files.names.iterdir():
            with contextlib.suppress(NotFoundError, FileNotFoundError):
                if is_snapshot(path.name):
                    found.append(self._info(path))
        return sorted(found, key=lambda info: (info.used_s, info.name))

    def _info(self, path: Path) -> SnapshotInfo:
        fd = try_lock(path)
        if fd is not None:
            os.close(fd)
        return SnapshotInfo(
            path.name,
            self._files.manifest(path.name),
            used_s=path.stat().st_mtime,
            is_kept=path.with_name(f"{path.name}.kept").exists(),
            is_in_use=fd is None,
        )

    def num_bytes(self) -> int:
        """Bytes of content in all layers, each counted once."""
        layers = {
            layer.digest: layer.num_bytes for info in self.list() for layer in info.manifest.layers
        }
        return sum(layers.values())

    def remove(self, name: str) -> None:
        """Forget a snapshot and the layers that no other one has; missing is fine.

        Raises `ResourceExhausted` while a box uses it.
        """
        path = self._files.names / name
        if not path.exists():
            return
        with self._files.locked(shared=False):
            if not self._files.remove_name(path):
                raise ResourceExhausted(f"{name[:24]}… is in use by a box; try again when it ended")
        self._files.remove_unused_layers()

    def remove_unless_kept(self, name: str) -> None:
        """Forget a snapshot that nobody asked for by name, if no box uses it."""
        if not (self._files.names / f"{name}.kept").exists():
            with contextlib.suppress(ResourceExhausted):
                self.remove(name)

    def collect(self, *, max_bytes: int, unused_for_s: float = 0.0) -> int:
        """Remove the snapshots not used for longest until `num_bytes` is at most `max_bytes`.

        Those in use or used within `unused_for_s` stay. Returns the bytes freed.
        """
        before = now = self.num_bytes()
        for info in self.list():
            if now <= max_bytes:
                break
            if not info.is_in_use and info.used_s <= self._now_s() - unused_for_s:
                with contextlib.suppress(ResourceExhausted):
                    self.remove(info.name)
                now = self.num_bytes()
        return before - now
