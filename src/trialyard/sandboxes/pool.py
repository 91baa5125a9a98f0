"""`NamespacePool`: a pool of `NamespaceSandbox`es on one host (see box_pool.py)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from trialyard.core.image import Image
from trialyard.sandboxes.backend import Backend
from trialyard.sandboxes.box_pool import BoxPool
from trialyard.sandboxes.box_source import BoxKind
from trialyard.sandboxes.host import SandboxHost
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.zygote import WarmImport


class HostOptions(TypedDict, total=False):
    """What `SandboxHost` takes; its defaults hold for what is left out."""

    backend: Backend | None
    layers: Mapping[str, Path] | None
    runtime_directory: Path
    warm_interpreters: bool
    warm_imports: Sequence[WarmImport]


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
        return await NamespaceSandbox.start(self.open(), kind.image, kind.limits, kind.workdir)

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
        self._boxes = HostBoxes(host)
        super().__init__(
            self._boxes,
            images,
            max_boxes=max_boxes,
            warm_per_kind=warm_per_kind,
            max_memory_bytes=max_memory_bytes,
        )

    @property
    def _host(self) -> SandboxHost | None:
        return self._boxes.host

    def _open_host(self) -> SandboxHost:
        return self._boxes.open()

    def zygote_pids(self) -> list[int]:
        """Host pids of the warm interpreters, for accounting."""
        host = self._boxes.host
        return host.zygotes.pids() if host is not None and host.zygotes is not None else []
