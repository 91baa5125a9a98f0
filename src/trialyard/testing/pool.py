"""A pool of `FakeSandbox`es: the contract of `SandboxPool` as far as it needs no process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

from trialyard.core.errors import NotFoundError, ResourceExhausted, SandboxLost, UserError
from trialyard.core.sandbox import BoxUser, Limits, Sandbox, check_ttl, check_user
from trialyard.testing.sandbox import FakeSandbox, FakeSnapshot, Program, exited, scripted


class FakePool:
    """Hands out `FakeSandbox`es that all run `program`. `boxes` keeps every one ever made.

    Who waits is served by priority, then in order; there is no fair share and no aging.
    """

    def __init__(
        self,
        program: Program | None = None,
        *,
        images: Sequence[str] = ("host",),
        max_boxes: int = 64,
    ) -> None:
        self._program = program or scripted({("true",): exited()})
        self._images = tuple(images)
        self._max_boxes = max_boxes
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        """(-priority, count, admitted), as they came."""
        self.boxes: list[FakeSandbox] = []
        self.owners: list[str] = []
        self._admitted = self._live = self._lost = 0
        self._closed = False
        self.snapshots: dict[str, FakeSnapshot] = {}

    def image_digest(self, image: str) -> str:
        if image not in self._images and image not in self.snapshots:
            raise NotFoundError(f"image {image!r} does not exist; known: {', '.join(self._images)}")
        return f"fake-{image}"

    @contextlib.asynccontextmanager
    async def _one(
        self, many: AbstractAsyncContextManager[list[Sandbox]]
    ) -> AsyncIterator[Sandbox]:
        async with many as [box]:
            yield box

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
        return self._one(
            self.acquire_many(
                1,
                image=image,
                limits=limits,
                owner=owner,
                workdir=workdir,
                user=user,
                priority=priority,
                timeout_s=timeout_s,
                ttl_s=ttl_s,
            )
        )

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
        self.image_digest(image)
        check_user(user)
        if not 1 <= count <= self._max_boxes:
            raise UserError(f"count {count}: must be between 1 and max_boxes {self._max_boxes}")
        check_ttl(ttl_s, limits)
        return self._lease(count, image, owner, workdir, priority, timeout_s, ttl_s)

    def fork(
        self, sandbox: Sandbox, count: int, *, owner: str, timeout_s: float = 60.0
    ) -> AbstractAsyncContextManager[list[Sandbox]]:
        if not any(box is sandbox and box.is_open for box in self.boxes):
            raise NotFoundError(f"box {sandbox.id} is not in use from this pool; it cannot fork")
        if not 1 <= count <= self._max_boxes:
            raise UserError(f"count {count}: must be between 1 and max_boxes {self._max_boxes}")
        return self._fork(sandbox, count, owner, timeout_s)

    @contextlib.asynccontextmanager
    async def _fork(
        self, sandbox: Sandbox, count: int, owner: str, timeout_s: float
    ) -> AsyncIterator[list[Sandbox]]:
        name = await sandbox.snapshot()
        async with self._lease(count, name, owner, sandbox.workdir, 0, timeout_s, None) as boxes:
            yield boxes

    @contextlib.asynccontextmanager
    async def _lease(
        self,
        count: int,
        image: str,
        owner: str,
        workdir: str,
        priority: int,
        timeout_s: float,
        ttl_s: float | None,
    ) -> AsyncIterator[list[Sandbox]]:
        await self._wait_for_room(count, priority, timeout_s)
        boxes = [
            FakeSandbox(self._program, workdir, image=image, snapshots=self.snapshots)
            for _ in range(count)
        ]
        self.boxes += boxes
        self.owners += [owner] * count
        self._live += count
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(ttl_s, box.lose) for box in boxes if ttl_s is not None]
        try:
            yield list(boxes)
        except SandboxLost:
            self._lost += 1
            raise
        finally:
            self._live -= count
            for timer in timers:
                timer.cancel()
            for box in boxes:
                await box.close()
            self._give_back(count)

    async def _wait_for_room(self, count: int, priority: int, timeout_s: float) -> None:
        if self._closed:
            raise ResourceExhausted("the sandbox pool is closed")
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((-priority, count, admitted))
        self._admit()
        try:
            if not admitted.done():
                await asyncio.wait_for(asyncio.shield(admitted), timeout_s)
        except TimeoutError:
            if not admitted.done():
                raise ResourceExhausted(f"no room for another box within {timeout_s} s") from None
        except asyncio.CancelledError:
            if admitted.done() and not admitted.exception():
                self._give_back(count)
            raise
        finally:
            self._waiters = [each for each in self._waiters if each[2] is not admitted]
            self._admit()

    def _admit(self) -> None:
        """Let in whoever is next, as far as there is room for all of it."""
        while self._waiters:
            first = min(self._waiters, key=lambda waiter: waiter[0])
            if self._admitted + first[1] > self._max_boxes:
                return
            self._waiters.remove(first)
            self._admitted += first[1]
            first[2].set_result(None)

    def _give_back(self, count: int) -> None:
        self._admitted -= count
        self._admit()

    def counters(self) -> dict[str, int]:
        created = len(self.boxes)
        return {
            "created": created,
            "destroyed": created - self._live,
            "live": self._live,
            "warm": 0,
            "lost": self._lost,
            "leaked": 0,
        }

    async def close(self) -> None:
        self._closed = True
        for _, _, admitted in self._waiters:
            if not admitted.done():
                admitted.set_exception(ResourceExhausted("the sandbox pool was closed"))
        self._waiters.clear()
        for box in self.boxes:
            await box.close()
