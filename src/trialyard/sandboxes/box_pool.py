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
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from trialyard.core.errors import (
    NotFoundError,
    ResourceExhausted,
    SandboxLost,
    TrialyardError,
    UserError,
)
from trialyard.core.image import Image
from trialyard.core.sandbox import Limits, Sandbox
from trialyard.sandboxes.admission import Admission, Claim, Ticket
from trialyard.sandboxes.box_source import BoxKind, BoxSource, PooledBox
from trialyard.sandboxes.plan import check_workdir
from trialyard.sandboxes.shelves import Shelves

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
        self._admitted: dict[Ticket, asyncio.Future[None]] = {}
        """Tickets that wait -> resolved when admitted."""
        self._shelves = Shelves()
        self._leases: dict[str, _Lease] = {}
        self._num_boxes = 0
        self._places: deque[asyncio.Future[None]] = deque()
        """Admitted claims that wait for a dying box to be gone."""
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._refills: Counter[BoxKind] = Counter()
        self._refill_wanted: OrderedDict[BoxKind, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts = _Counts()
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
        priority: int = 0,
        timeout_s: float = 60.0,
        ttl_s: float | None = None,
    ) -> AbstractAsyncContextManager[Sandbox]:
        kind = BoxKind(self._image(image), limits, check_workdir(workdir))
        claim = self._claim(kind, 1, owner, priority)
        return self._lease_one(kind, claim, timeout_s, check_ttl(ttl_s, limits))

    def acquire_many(
        self,
        count: int,
        *,
        image: str,
        limits: Limits,
        owner: str,
        workdir: str = "/work",
        priority: int = 0,
        timeout_s: float = 60.0,
        ttl_s: float | None = None,
    ) -> AbstractAsyncContextManager[list[Sandbox]]:
        kind = BoxKind(self._image(image), limits, check_workdir(workdir))
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
        await self._wait_for_admission(claim, timeout_s)
        boxes: list[PooledBox] = []
        try:
            await self._fill(boxes, kind, claim.count)
            for box in boxes:
                self._leases[box.id] = _Lease(claim.owner, box)
                box.lend(claim.owner, ttl_s)
            self._want_refill(kind)
            yield list(boxes)
        except SandboxLost:
            self._counts.lost += 1
            raise
        finally:
            for box in boxes:
                self._leases.pop(box.id, None)
                self._destroy(box)
            self._admission.release(claim)
            self._admit()

    # --- admission ----------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ResourceExhausted("the sandbox pool is closed")

    async def _wait_for_admission(self, claim: Claim, timeout_s: float) -> None:
        """Raises `ResourceExhausted` when there is no room in time."""
        self._check_open()
        loop = asyncio.get_running_loop()
        ticket = self._admission.enqueue(claim, loop.time())
        admitted = self._admitted[ticket] = loop.create_future()
        self._admit()
        if admitted.done():
            return
        timer = loop.call_later(timeout_s, self._refuse, ticket, timeout_s)
        if timeout_s <= 0:
            self._refuse(ticket, timeout_s)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self._admission.release(claim)  # admitted and cancelled in the same moment
            self._admission.withdraw(ticket)
            self._admitted.pop(ticket, None)
            self._admit()
            raise
        finally:
            timer.cancel()

    def _admit(self) -> None:
        """Let in whoever is next, as far as there is room."""
        now_s = asyncio.get_running_loop().time()
        while (ticket := self._admission.admit(now_s)) is not None:
            admitted = self._admitted.pop(ticket)
            if admitted.done():  # cancelled, and its task has not run yet
                self._admission.release(ticket.claim)
            else:
                admitted.set_result(None)

    def _refuse(self, ticket: Ticket, timeout_s: float) -> None:
        admitted = self._admitted.pop(ticket, None)
        if admitted is None or admitted.done():
            return
        self._admission.withdraw(ticket)
        wanted = f"{ticket.claim.count} more boxes" if ticket.claim.count > 1 else "another box"
        admitted.set_exception(
            ResourceExhausted(
                f"no room for {wanted} within {timeout_s} s: {self._admission.boxes} of "
                f"{self._max_boxes} are in use and {len(self._admission)} claims wait"
            )
        )
        self._admit()  # who stood behind a claim too big may fit

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
        await self._take_place()
        boxes.append(await self._start(kind))

    async def _take_place(self) -> None:
        """Wait until one box less exists than may, giving up an unused one."""
        if self._num_boxes >= self._max_boxes and (unused := self._shelves.evict()) is not None:
            self._destroy(unused)
        if self._num_boxes < self._max_boxes and not self._places:
            self._num_boxes += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._places.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._free_place()
            raise

    def _free_place(self) -> None:
        """A place is free: it goes to the first who waits for it."""
        while self._places:
            place = self._places.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._num_boxes -= 1

    async def _start(self, kind: BoxKind) -> PooledBox:
        """Start a box in a place that is reserved for it."""
        try:
            async with self._starts:
                self._check_open()
                box = await self._source.start(kind)
        except BaseException:
            self._free_place()
            raise
        self._counts.created += 1
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
            and not self._places
        ):
            kind, _ = self._refill_wanted.popitem(last=False)
            short = self._warm_per_kind - self._shelves.count(kind) - self._refills[kind]
            if short <= 0 or self._num_boxes >= self._max_boxes:
                continue
            self._num_boxes += 1
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
        if self._places:
            self._destroy(box)
        else:
            self._shelves.put(kind, box)
        self._refill()

    # --- the end ------------------------------------------------------------------------

    def _destroy(self, box: PooledBox) -> None:
        """Kill now, tidy up in the background; the place is free when all is gone."""
        box.destroy("it was closed")
        self._keep(self._bury(box))

    async def _bury(self, box: PooledBox) -> None:
        await box.close()
        self._counts.destroyed += 1
        self._counts.leaked += box.leaked
        self._free_place()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for ticket, admitted in list(self._admitted.items()):
            self._admission.withdraw(ticket)
            if not admitted.done():
                admitted.set_exception(ResourceExhausted("the sandbox pool was closed"))
        self._admitted.clear()
        self._refill_wanted.clear()
        while (box := self._shelves.evict()) is not None:
            self._destroy(box)
        leased = [lease.box for lease in self._leases.values()]
        for box in leased:
            box.destroy("its pool was closed")
        for box in leased:
            await box.close()
        while self._tasks or self._num_boxes > len(self._leases):
            await (asyncio.wait(set(self._tasks)) if self._tasks else asyncio.sleep(_CLOSE_POLL_S))
        self._counts.leaked += not await self._source.close()


def check_ttl(ttl_s: float | None, limits: Limits) -> float:
    """How long a leased box may live. Raises `UserError` beyond the limit's `wall_s`."""
    if ttl_s is None:
        return limits.wall_s
    if not 0 < ttl_s <= limits.wall_s:
        raise UserError(f"ttl_s {ttl_s!r}: must be above 0 and at most wall_s {limits.wall_s}")
    return ttl_s
