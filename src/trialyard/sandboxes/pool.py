"""`NamespacePool`: fresh boxes at once, because unused ones wait ready.

Invariants: a box is handed out once and destroyed after; every leased box has an owner and a
deadline that kills it; no more than `max_boxes` boxes exist, leased and warm together, and
waiters are served in the order in which they came; `close` leaves nothing.
"""

import asyncio
import contextlib
import os
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from trialyard.core.errors import NotFoundError, ResourceExhausted, SandboxLost, TrialyardError
from trialyard.core.image import Image
from trialyard.core.sandbox import Limits, Sandbox
from trialyard.sandboxes.backend import Backend
from trialyard.sandboxes.host import RUNTIME_DIRECTORY, SandboxHost
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.plan import check_workdir
from trialyard.sandboxes.zygote import WarmImport

_REFILLS_AT_ONCE = 2
_REFILL_DELAY_S = 0.005
_STARTS_AT_ONCE = 2 * (os.cpu_count() or 1)
"""More starts side by side only make each slower."""


@dataclass(frozen=True, slots=True)
class BoxKind:
    """Boxes of one kind are interchangeable as long as they are unused."""

    image: Image
    limits: Limits
    workdir: str


@dataclass(slots=True)
class _Counts:
    created: int = 0
    destroyed: int = 0
    lost: int = 0
    leaked: int = 0


@dataclass(slots=True)
class _Lease:
    owner: str
    box: NamespaceSandbox


@dataclass(slots=True)
class _Shelf:
    """Unused boxes of one kind."""

    boxes: deque[NamespaceSandbox] = field(default_factory=deque)
    starting: int = 0


class NamespacePool:
    """Hands out `NamespaceSandbox`es of one host. Lives in one event loop."""

    def __init__(
        self,
        images: Mapping[str, Image],
        *,
        max_boxes: int = 64,
        warm_per_kind: int = 2,
        layers: Mapping[str, Path] | None = None,
        runtime_directory: Path = RUNTIME_DIRECTORY,
        warm_interpreters: bool = True,
        warm_imports: Sequence[WarmImport] = (),
        backend: Backend | None = None,
    ) -> None:
        self._images = dict(images)
        self._backend = backend
        self._max_boxes = max_boxes
        self._warm_per_kind = warm_per_kind
        self._layers = layers
        self._runtime_directory = runtime_directory
        self._warm_interpreters = warm_interpreters
        self._warm_imports = warm_imports
        self._host: SandboxHost | None = None
        self._shelves: OrderedDict[BoxKind, _Shelf] = OrderedDict()
        self._leases: dict[str, _Lease] = {}
        self._num_boxes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_refills = 0
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._refill_wanted: OrderedDict[BoxKind, None] = OrderedDict()
        self._counts = _Counts()
        self._closed = False

    def image_digest(self, image: str) -> str:
        return self._image(image).digest

    def _image(self, name: str) -> Image:
        try:
            return self._images[name]
        except KeyError:
            known = ", ".join(sorted(self._images)) or "none"
            raise NotFoundError(f"image {name!r} does not exist; known: {known}") from None

    def counters(self) -> dict[str, int]:
        warm = sum(len(shelf.boxes) for shelf in self._shelves.values())
        return {
            "created": self._counts.created,
            "destroyed": self._counts.destroyed,
            "live": len(self._leases),
            "warm": warm,
            "lost": self._counts.lost,
            "leaked": self._counts.leaked,
        }

    def zygote_pids(self) -> list[int]:
        """Host pids of the warm interpreters, for accounting."""
        zygotes = self._host.zygotes if self._host else None
        return zygotes.pids() if zygotes else []

    def leases(self) -> dict[str, str]:
        """Box id -> owner of every box that is in use."""
        return {id: lease.owner for id, lease in self._leases.items()}

    def acquire(
        self,
        *,
        image: str,
        limits: Limits,
        owner: str,
        workdir: str = "/work",
        timeout_s: float = 60.0,
    ) -> AbstractAsyncContextManager[Sandbox]:
        kind = BoxKind(self._image(image), limits, check_workdir(workdir))
        return self._acquire(kind, owner, timeout_s)

    @contextlib.asynccontextmanager
    async def _acquire(self, kind: BoxKind, owner: str, timeout_s: float) -> AsyncIterator[Sandbox]:
        box = await self._take(kind, timeout_s)
        self._leases[box.id] = _Lease(owner, box)
        box.set_deadline()
        self._want_refill(kind)
        try:
            yield box
        except SandboxLost:
            self._counts.lost += 1
            raise
        finally:
            del self._leases[box.id]
            self._destroy(box)

    # --- taking -------------------------------------------------------------------------

    def _open_host(self) -> SandboxHost:
        if self._closed:
            raise ResourceExhausted("the sandbox pool is closed")
        if self._host is None:
            self._host = SandboxHost(
                backend=self._backend,
                layers=self._layers,
                runtime_directory=self._runtime_directory,
                warm_interpreters=self._warm_interpreters,
                warm_imports=self._warm_imports,
            )
        return self._host

    async def _take(self, kind: BoxKind, timeout_s: float) -> NamespaceSandbox:
        host = self._open_host()
        shelf = self._shelf(kind)
        while shelf.boxes:
            box = shelf.boxes.popleft()
            if box.alive:
                return box
            self._counts.lost += 1
            self._destroy(box)
        await self._wait_for_room(timeout_s)
        return await self._start(host, kind)

    def _shelf(self, kind: BoxKind) -> _Shelf:
        shelf = self._shelves.setdefault(kind, _Shelf())
        self._shelves.move_to_end(kind)
        return shelf

    async def _wait_for_room(self, timeout_s: float) -> None:
        """Reserve one place, giving up unused boxes of other kinds before waiting."""
        if self._num_boxes >= self._max_boxes:
            self._evict_one()
        if self._num_boxes < self._max_boxes and not self._waiters:
            self._num_boxes += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait_for(asyncio.shield(waiter), timeout_s)
        except TimeoutError:
            raise ResourceExhausted(
                f"no room for another box within {timeout_s} s: all {self._max_boxes} are in use"
            ) from None
        finally:
            if not waiter.done():
                waiter.cancel()
        if self._closed:
            self._free_place()
            raise ResourceExhausted("the sandbox pool was closed")

    def _evict_one(self) -> None:
        for shelf in self._shelves.values():
            if shelf.boxes:
                self._destroy(shelf.boxes.popleft())
                return

    def _free_place(self) -> None:
        """A place is free: it goes to the first who waits for it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._num_boxes -= 1

    async def _start(self, host: SandboxHost, kind: BoxKind) -> NamespaceSandbox:
        """Start a box in a place that is reserved for it."""
        try:
            async with self._starts:
                box = await NamespaceSandbox.start(host, kind.image, kind.limits, kind.workdir)
        except BaseException:
            self._free_place()
            raise
        self._counts.created += 1
        return box

    # --- keeping warm -------------------------------------------------------------------

    def _want_refill(self, kind: BoxKind) -> None:
        """At once when none is left; else a moment later, out of the way of what runs now."""
        if self._closed:
            return
        self._refill_wanted[kind] = None
        if not self._shelf(kind).boxes:
            self._refill()
        else:
            asyncio.get_running_loop().call_later(_REFILL_DELAY_S, self._refill)

    def _refill(self) -> None:
        """Start background tasks while a wanted kind has too few unused boxes."""
        while (
            not self._closed
            and self._refill_wanted
            and self._num_refills < _REFILLS_AT_ONCE
            and not self._waiters
        ):
            kind, _ = self._refill_wanted.popitem(last=False)
            shelf = self._shelf(kind)
            short = self._warm_per_kind - len(shelf.boxes) - shelf.starting
            if short <= 0 or self._num_boxes >= self._max_boxes:
                continue
            self._num_boxes += 1
            self._num_refills += 1
            shelf.starting += 1
            self._refill_wanted[kind] = None
            self._keep(asyncio.get_running_loop().create_task(self._refill_one(kind, shelf)))

    async def _refill_one(self, kind: BoxKind, shelf: _Shelf) -> None:
        try:
            box = await self._start(self._open_host(), kind)
        except TrialyardError:
            self._refill_wanted.pop(kind, None)  # the next acquire will say what is wrong
            return
        finally:
            self._num_refills -= 1
            shelf.starting -= 1
        if self._closed or self._waiters:
            self._destroy(box)
        else:
            shelf.boxes.append(box)
        self._refill()

    # --- the end ------------------------------------------------------------------------

    def _destroy(self, box: NamespaceSandbox) -> None:
        """Kill now, tidy up in the background; the place is free when all is gone."""
        box.destroy("it was closed")
        self._keep(asyncio.get_running_loop().create_task(self._bury(box)))

    async def _bury(self, box: NamespaceSandbox) -> None:
        await box.close()
        self._counts.destroyed += 1
        self._counts.leaked += box.leaked
        self._free_place()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self._closed = True
        self._refill_wanted.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(ResourceExhausted("the sandbox pool was closed"))
        self._waiters.clear()
        for shelf in self._shelves.values():
            while shelf.boxes:
                self._destroy(shelf.boxes.popleft())
        for lease in list(self._leases.values()):
            await lease.box.close()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._host is not None and self._host.zygotes is not None:
            await self._host.zygotes.close()
        if self._host is not None:
            self._counts.leaked += not self._host.close()
            self._host = None
