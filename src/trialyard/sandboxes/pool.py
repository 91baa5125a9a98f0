"""`NamespacePool`: a pool of `NamespaceSandbox`es on one host (see box_pool.py)."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from trialyard.core.errors import NotFoundError
from trialyard.core.image import Image
from trialyard.core.sandbox import Sandbox
from trialyard.sandboxes.admission import Claim
from trialyard.sandboxes.backend import Backend
from trialyard.sandboxes.blocking import in_thread
from trialyard.sandboxes.box_pool import BoxPool
from trialyard.sandboxes.box_source import BoxKind
from trialyard.sandboxes.host import RUNTIME_DIRECTORY, SandboxHost
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.snapshot_files import is_snapshot
from trialyard.sandboxes.snapshots import SnapshotStore
from trialyard.sandboxes.zygote import WarmImport


class HostOptions(TypedDict, total=False):
    """What `SandboxHost` takes; its defaults hold for what is left out."""

    backend: Backend | None
    layers: Mapping[str, Path] | None
    runtime_directory: Path
    warm_interpreters: bool
    warm_imports: Sequence[WarmImport]
    snapshots: SnapshotStore
    """Default: below the runtime directory."""


class HostBoxes:
    """Makes boxes on a `SandboxHost` that the first of them opens."""

    def __init__(self, options: HostOptions) -> None:
        self._options = options
        self.host: SandboxHost | None = None

    def open(self) -> SandboxHost:
        """Raises `SandboxUnavailable` or `LimitUnsupported`."""
        if self.host is None:
            self.host = SandboxHost(**self._options)
        return self.host

    async def start(self, kind: BoxKind) -> NamespaceSandbox:
        host = self.open()
        if is_snapshot(kind.image.name):
            await in_thread(lambda _: host.snapshots.check_after_boot(kind.image.name))
        return await NamespaceSandbox.launch(host, kind.image, kind.limits, kind.workdir, kind.user)

    async def close(self) -> bool:
        host, self.host = self.host, None
        if host is None:
            return True
        if host.zygotes is not None:
            await host.zygotes.close()
        return host.close()


class NamespacePool(BoxPool):
    """Hands out `NamespaceSandbox`es of one host. Lives in one event loop."""

    def __init__(
        self,
        images: Mapping[str, Image],
        *,
        max_boxes: int = 64,
        warm_per_kind: int = 2,
        max_memory_bytes: int | None = None,
        **host: Unpack[HostOptions],
    ) -> None:
        directory = host.get("runtime_directory", RUNTIME_DIRECTORY) / "snapshots"
        self.snapshots = host.setdefault("snapshots", SnapshotStore(directory))
        self._boxes = HostBoxes(host)
        super().__init__(
            self._boxes,
            images,
            max_boxes=max_boxes,
            warm_per_kind=warm_per_kind,
            max_memory_bytes=max_memory_bytes,
        )

    def _image(self, name: str) -> Image:
        return (
            self.snapshots.load(name, self._images) if is_snapshot(name) else super()._image(name)
        )

    def _want_refill(self, kind: BoxKind) -> None:
        if not is_snapshot(kind.image.name):  # of which few boxes are ever wanted
            super()._want_refill(kind)

    def fork(
        self, sandbox: Sandbox, count: int, *, owner: str, timeout_s: float = 60.0
    ) -> AbstractAsyncContextManager[list[Sandbox]]:
        """`count` boxes with the files of `sandbox`, of its kind, all or none.

        `sandbox` must be in use from this pool. What it holds now is what each begins with;
        unless somebody takes a snapshot of the same content it is forgotten at the end.
        """
        lease = self._leases.get(sandbox.id)
        if lease is None or not isinstance(lease.box, NamespaceSandbox):
            raise NotFoundError(f"box {sandbox.id} is not in use from this pool; it cannot fork")
        box = lease.box
        kind = BoxKind(box.image, box.limits, box.workdir, box.user)
        claim = self._claim(kind, count, owner, 0)
        return self._fork(box, kind, claim, timeout_s)

    @contextlib.asynccontextmanager
    async def _fork(
        self, box: NamespaceSandbox, kind: BoxKind, claim: Claim, timeout_s: float
    ) -> AsyncIterator[list[Sandbox]]:
        name = await box.save(keep=False)
        try:
            kind = replace(kind, image=self._image(name))
            async with self._lease(kind, claim, timeout_s, kind.limits.wall_s) as boxes:
                yield boxes
        finally:
            self.snapshots.release(name)
            self._keep(self._forget(name))

    async def _forget(self, name: str) -> None:
        """Remove a fork's snapshot once its boxes are gone, unless somebody asked for it."""
        await in_thread(lambda _: self.snapshots.remove_unless_kept(name))

    @property
    def _host(self) -> SandboxHost | None:
        return self._boxes.host

    @property
    def supervisor(self) -> str:
        """The name under which this pool's boxes stand in the table; opens the host."""
        return self._boxes.open().owner.name

    def zygote_pids(self) -> list[int]:
        """Host pids of the warm interpreters, for accounting."""
        host = self._boxes.host
        return host.zygotes.pids() if host is not None and host.zygotes is not None else []
