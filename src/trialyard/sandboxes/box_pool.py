"""`BoxPool`: fresh boxes at once, because unused ones wait ready. Any source.

Invariants: a box is handed out once and destroyed after; every leased box has an owner and a
deadline that kills it; no more than `max_boxes` boxes exist, leased, warm and dying together;
a group of boxes is handed out whole or not at all; whoever is cancelled, at whatever moment,
leaves nothing; `close` leaves nothing. Admission is decided first (admission.py); an admitted
claim waits only for boxes that are already dying, so groups cannot block each other.
"""

import asyncio
import contextlib
import os
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from trialyard.core.errors import (
    NotFoundError,
    ResourceExhausted,
    SandboxLost,
    TrialyardError,
)
from trialyard.core.image import Image
from trialyard.core.sandbox import BoxUser, Limits, Sandbox, check_ttl, check_user
from trialyard.sandboxes.admission import Admission, Claim
from trialyard.sandboxes.box_events import (
    BoxEnded,
    BoxEvent,
    BoxLeased,
    BoxStarted,
    NetworkTried,
    Observer,
    Refused,
)
from trialyard.sandboxes.box_source import BoxKind, BoxSource, PooledBox
from trialyard.sandboxes.heartbeats import Heartbeats
from trialyard.sandboxes.observed import ObservedSandbox
from trialyard.sandboxes.places import Places
from trialyard.sandboxes.plan import check_workdir
from trialyard.sandboxes.shelves import Shelves
from trialyard.sandboxes.waiting_room import CLOSED, WaitingRoom

_REFILLS_AT_ONCE = 2
_REFILL_DELAY_S = 0.005
_CLOSE_POLL_S = 0.005
_STARTS_AT_ONCE = 2 * (os.cpu_count() or 1)
"""More starts side by side only make each slower."""


@dataclass(slots=True)
class _Counts:
    created: int = 0
    destroyed: int = 0
    lost: int = 0
    leaked: int = 0


@dataclass(frozen=True, slots=True)
class _Lease:
    owner: str
    box: PooledBox
    since_s: float


class BoxPool:
    """Hands out the boxes of one source. Lives in one event loop."""

    def __init__(
        self,
        source: BoxSource,
        images: Mapping[str, Image],
        *,
        max_boxes: int = 64,
        warm_per_kind: int = 2,
        max_memory_bytes: int | None = None,
    ) -> None:
        self._source = source
        self._images = dict(images)
        self._max_boxes = max_boxes
        self._warm_per_kind = warm_per_kind
        self._admission = Admission(max_boxes, max_memory_bytes=max_memory_bytes)
        self._room = WaitingRoom(self._admission, self._tell_refusal)
        self._places = Places(max_boxes)
        self._shelves = Shelves()
        self._leases: dict[str, _Lease] = {}
        self._heartbeats = Heartbeats()
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._refills: Counter[BoxKind] = Counter()
        self._refill_wanted: OrderedDict[BoxKind, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts = _Counts()
        self._observers: list[Observer] = []
        self._closing: asyncio.Task[None] | None = None

    def image_digest(self, image: str) -> str:
        return self._image(image).digest

    def _image(self, name: str) -> Image:
        try:
            return self._images[name]
        except KeyError:
            known = ", ".join(sorted(self._images)) or "none"
            raise NotFoundError(f"image {name!r} does not exist; known: {known}") from None

    def counters(self) -> dict[str, int]:
        return {
            "created": self._counts.created,
            "destroyed": self._counts.destroyed,
            "live": len(self._leases),
            "warm": len(self._shelves),
            "lost": self._counts.lost,
            "leaked": self._counts.leaked,
        }

    def leases(self) -> dict[str, str]:
        """Box id -> owner of every box that is in use."""
        return {id: lease.owner for id, lease in self._leases.items()}

    # --- leases -------------------------------------------------------------------------

    def acquire(
        self,
        *,
        image: str,
        limits: Limits,
        owner: str,
        workdir: str = "/work",
        user: BoxUser = "user",
        priority: int = 0,
        timeout_s: float = 60.0,
        ttl_s: float | None = None,
    ) -> AbstractAsyncContextManager[Sandbox]:
        kind = BoxKind(self._image(image), limits, check_workdir(workdir), check_user(user))
        claim = self._claim(kind, 1, owner, priority)
        return self._lease_one(kind, claim, timeout_s, check_ttl(ttl_s, limits))

    def acquire_many(  # noqa: PLR0913 - a lease is said in full at one place
        self,
        count: int,
        *,
        image: str,
        limits: Limits,
        owner: str,
        workdir: str = "/work",
        user: BoxUser = "user",
        priority: int = 0,
        timeout_s: float = 60.0,
        ttl_s: float | None = None,
    ) -> AbstractAsyncContextManager[list[Sandbox]]:
        kind = BoxKind(self._image(image), limits, check_workdir(workdir), check_user(user))
        claim = self._claim(kind, count, owner, priority)
        return self._lease(kind, claim, timeout_s, check_ttl(ttl_s, limits))

    def _claim(self, kind: BoxKind, count: int, owner: str, priority: int) -> Claim:
        claim = Claim(owner, count, count * kind.limits.memory_bytes, priority)
        self._admission.check(claim)
        return claim

    @contextlib.asynccontextmanager
    async def _lease_one(
        self, kind: BoxKind, claim: Claim, timeout_s: float, ttl_s: float
    ) -> AsyncIterator[Sandbox]:
        async with self._lease(kind, claim, timeout_s, ttl_s) as [box]:
            yield box

    @contextlib.asynccontextmanager
    async def _lease(
        self, kind: BoxKind, claim: Claim, timeout_s: float, ttl_s: float
    ) -> AsyncIterator[list[Sandbox]]:
        asked_s = time.monotonic()
        await self._room.enter(claim, timeout_s)
        boxes: list[PooledBox] = []
        lost = False
        try:
            await self._fill(boxes, kind, claim.count)
            for box in boxes:
                box.lend(claim.owner, ttl_s)
                self._leases[box.id] = _Lease(claim.owner, box, time.monotonic())
                self._tell_lease(box, kind, claim, asked_s, ttl_s)
            self._want_refill(kind)
            yield [self._observed(box, claim.owner) for box in boxes]
        except SandboxLost:
            self._counts.lost += 1
            lost = True
            raise
        finally:
            for box in boxes:
                lease = self._leases.pop(box.id, None)
                self._heartbeats.forget(box.id)
                self._destroy(box, lease, lost=lost)
            self._room.leave(claim)

    def watch(self, box_id: str, every_s: float) -> None:
        """For a remote owner: its box goes unless `heartbeat` is called at least so often.

        Raises `NotFoundError` for a box that is not leased, `UserError` for `every_s` <= 0.
        """
        box = self._leased(box_id)
        why = f"its owner was silent for {every_s} s"
        self._heartbeats.watch(box_id, every_s, lambda: box.destroy(why))

    def heartbeat(self, box_id: str) -> None:
        """The owner of a watched box is alive. Raises `NotFoundError`, also when it is lost."""
        if not self._leased(box_id).alive:
            raise NotFoundError(f"box {box_id} is gone")
        self._heartbeats.beat(box_id)

    def _leased(self, box_id: str) -> PooledBox:
        if box_id not in self._leases:
            raise NotFoundError(f"box {box_id} is not leased from this pool")
        return self._leases[box_id].box

    # --- observers ----------------------------------------------------------------------

    def observe(self, observer: Observer) -> None:
        """From now on `observer` is told what happens to every box and in boxes leased later."""
        self._observers.append(observer)

    @property
    def num_waiting(self) -> int:
        """How many claims wait for room."""
        return len(self._room)

    @property
    def promised_bytes(self) -> int:
        """What the boxes in use may use together."""
        return self._admission.memory_bytes

    def _tell(self, event: BoxEvent) -> None:
        for observer in self._observers:
            observer(event)

    def _tell_lease(
        self, box: PooledBox, kind: BoxKind, claim: Claim, asked_s: float, ttl_s: float
    ) -> None:
        if self._observers:
            waited_s = time.monotonic() - asked_s
            image, limits = kind.image.name, kind.limits
            self._tell(BoxLeased(box.id, claim.owner, image, limits, kind.workdir, waited_s, ttl_s))

    def _tell_refusal(self, claim: Claim, waited_s: float) -> None:
        self._tell(Refused(claim.owner, claim.count, waited_s))

    def _observed(self, box: PooledBox, owner: str) -> Sandbox:
        return ObservedSandbox(box, owner, self._tell) if self._observers else box

    # --- boxes for an admitted claim ----------------------------------------------------

    async def _fill(self, boxes: list[PooledBox], kind: BoxKind, count: int) -> None:
        """Put `count` boxes into `boxes`; what is in there at an error is the caller's too."""
        while len(boxes) < count and (box := self._shelves.take(kind)) is not None:
            if box.alive:
                boxes.append(box)
            else:
                self._counts.lost += 1
                self._destroy(box)
        missing = count - len(boxes)
        if missing <= 1:
            if missing:
                await self._start_into(boxes, kind)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(missing):
                    group.create_task(self._start_into(boxes, kind))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _start_into(self, boxes: list[PooledBox], kind: BoxKind) -> None:
        if self._places.taken >= self._max_boxes and (unused := self._shelves.evict()) is not None:
            self._destroy(unused)
        await self._places.take()
        boxes.append(await self._start(kind))

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ResourceExhausted(CLOSED)

    async def _start(self, kind: BoxKind) -> PooledBox:
        """Start a box in a place that is reserved for it."""
        try:
            async with self._starts:
                self._check_open()
                started_s = time.monotonic()
                box = await self._source.start(kind)
        except BaseException:
            self._places.free()
            raise
        self._counts.created += 1
        if self._observers:
            self._tell(BoxStarted(box.id, kind.image.name, time.monotonic() - started_s))
        if self._closing is not None:
            self._destroy(box)
            self._check_open()
        return box

    # --- keeping warm -------------------------------------------------------------------

    def _want_refill(self, kind: BoxKind) -> None:
        """At once when none is left; else a moment later, out of the way of what runs now."""
        if self._closing is not None or not self._warm_per_kind:
            return
        self._refill_wanted[kind] = None
        if not self._shelves.count(kind):
            self._refill()
        else:
            asyncio.get_running_loop().call_later(_REFILL_DELAY_S, self._refill)

    def _refill(self) -> None:
        """Start background tasks while a wanted kind has too few unused boxes."""
        while (
            self._closing is None
            and self._refill_wanted
            and self._refills.total() < _REFILLS_AT_ONCE
            and not self._places.are_wanted
        ):
            kind, _ = self._refill_wanted.popitem(last=False)
            short = self._warm_per_kind - self._shelves.count(kind) - self._refills[kind]
            if short <= 0 or not self._places.try_take():
                continue
            self._refills[kind] += 1
            self._refill_wanted[kind] = None
            self._keep(self._refill_one(kind))

    async def _refill_one(self, kind: BoxKind) -> None:
        try:
            box = await self._start(kind)
        except TrialyardError:
            self._refill_wanted.pop(kind, None)  # the next acquire will say what is wrong
            return
        finally:
            self._refills -= Counter((kind,))
        if self._places.are_wanted:
            self._destroy(box)
        else:
            self._shelves.put(kind, box)
        self._refill()

    # --- the end ------------------------------------------------------------------------

    def _destroy(self, box: PooledBox, lease: _Lease | None = None, *, lost: bool = False) -> None:
        """Kill now, tidy up in the background; the place is free when all is gone."""
        box.destroy("it was closed")
        self._keep(self._bury(box, lease, lost))

    async def _bury(self, box: PooledBox, lease: _Lease | None, lost: bool) -> None:
        leased_s = time.monotonic() - lease.since_s if lease else 0.0
        await box.close()
        self._counts.destroyed += 1
        self._counts.leaked += box.leaked
        if lease and self._observers:
            for attempt in box.network_log():
                self._tell(NetworkTried(box.id, lease.owner, attempt))
            self._tell(BoxEnded(box.id, lease.owner, leased_s, lost, box.leaked))
        self._places.free()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._room.close()
        self._refill_wanted.clear()
        while (box := self._shelves.evict()) is not None:
            self._destroy(box)
        leased = [lease.box for lease in self._leases.values()]
        for box in leased:
            box.destroy("its pool was closed")
        for box in leased:
            await box.close()
        while self._tasks or self._places.taken > len(self._leases):
            await (asyncio.wait(set(self._tasks)) if self._tasks else asyncio.sleep(_CLOSE_POLL_S))
        self._counts.leaked += not await self._source.close()
