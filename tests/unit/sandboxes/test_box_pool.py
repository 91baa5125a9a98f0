"""The pool on a source without processes: every ending at every moment leaves nothing."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from trialyard.core.errors import (
    NotFoundError,
    ResourceExhausted,
    SandboxLost,
    SandboxUnavailable,
    TrialyardError,
    UserError,
)
from trialyard.core.image import Image
from trialyard.core.sandbox import Limits, Sandbox
from trialyard.sandboxes.box_pool import BoxPool
from trialyard.sandboxes.box_source import BoxKind
from trialyard.testing.sandbox import FakeSandbox, scripted

IMAGE = Image("i", "digest", ())
MAX_BOXES = 4


class Box(FakeSandbox):
    """A box that takes its time to go."""

    leaked = False
    owner = ""

    def __init__(self, yard: "Yard", kind: BoxKind) -> None:
        super().__init__(scripted({}), kind.workdir)
        self.kind = kind
        self.alive = True
        self.ttl_s: float | None = None
        self._yard = yard

    def lend(self, owner: str, ttl_s: float) -> None:
        self.ttl_s = ttl_s

    def destroy(self, why: str) -> None:
        self.alive = False

    async def close(self) -> None:
        self.alive = False
        await asyncio.sleep(self._yard.pause_s())
        self._yard.boxes.discard(self)


class Yard:
    """A source that counts what exists."""

    def __init__(self, pause_s: Callable[[], float] = lambda: 0.0) -> None:
        self.pause_s = pause_s
        self.boxes: set[Box] = set()
        self.most = self.started = 0
        self.failures: list[Exception] = []
        self.closed = False

    async def start(self, kind: BoxKind) -> Box:
        assert not self.closed
        box = Box(self, kind)
        self.boxes.add(box)
        self.most = max(self.most, len(self.boxes))
        self.started += 1
        try:
            await asyncio.sleep(self.pause_s())
            if self.failures:
                raise self.failures.pop()
        except BaseException:
            self.boxes.discard(box)
            raise
        return box

    async def close(self) -> bool:
        self.closed = True
        return not self.boxes


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.fixture
async def pool(yard: Yard) -> AsyncIterator[BoxPool]:
    made = BoxPool(yard, {"i": IMAGE}, max_boxes=MAX_BOXES, warm_per_kind=0)
    yield made
    await made.close()
    assert_nothing_is_left(made, yard)


def assert_nothing_is_left(pool: BoxPool, yard: Yard) -> None:
    assert yard.boxes == set()
    assert yard.closed
    counters = pool.counters()
    assert counters["created"] == counters["destroyed"]
    assert counters["live"] == counters["warm"] == counters["leaked"] == 0
    assert pool._admission.boxes == pool.num_waiting == pool._places.taken == 0


def many(
    pool: BoxPool, count: int, owner: str = "o", timeout_s: float = 10
) -> AbstractAsyncContextManager[list[Sandbox]]:
    return pool.acquire_many(count, image="i", limits=Limits(), owner=owner, timeout_s=timeout_s)


def one(
    pool: BoxPool, timeout_s: float = 10, ttl_s: float | None = None
) -> AbstractAsyncContextManager[Sandbox]:
    return pool.acquire(image="i", limits=Limits(), owner="o", timeout_s=timeout_s, ttl_s=ttl_s)


async def test_two_groups_that_do_not_fit_together_take_turns(pool: BoxPool, yard: Yard) -> None:
    held: list[int] = []

    async def use(count: int) -> None:
        async with many(pool, count) as boxes:
            held.append(count)
            assert len({box.id for box in boxes}) == count
            await asyncio.sleep(0.005)

    await asyncio.wait_for(asyncio.gather(*(use(3) for _ in range(6)), use(4)), 5)
    assert sorted(held) == [3] * 6 + [4]
    assert yard.most <= MAX_BOXES


async def test_a_group_whose_last_box_does_not_start_gets_none(pool: BoxPool, yard: Yard) -> None:
    yard.failures = [SandboxUnavailable("no more")]
    with pytest.raises(SandboxUnavailable, match="no more"):
        async with many(pool, 4):
            pytest.fail("all or none")
    async with many(pool, 4) as boxes:
        assert len(boxes) == 4


async def test_a_group_bigger_than_the_pool_is_refused_before_it_waits(pool: BoxPool) -> None:
    with pytest.raises(UserError, match=r"count 5.*at most 4"):
        many(pool, 5)


async def test_no_waiting_means_now_or_never(pool: BoxPool) -> None:
    async with many(pool, 4):
        with pytest.raises(ResourceExhausted, match="no room"):
            async with one(pool, timeout_s=0):
                pytest.fail("there is no room")
    async with one(pool, timeout_s=0) as box:  # the former boxes may still be dying
        assert box.id


async def test_unused_boxes_of_another_kind_give_way_at_once(yard: Yard) -> None:
    pool = BoxPool(yard, {"i": IMAGE}, max_boxes=3, warm_per_kind=2)
    async with one(pool):
        for _ in range(20):
            await asyncio.sleep(0)
        assert pool.counters()["warm"] == 2
        limits = Limits(pids=100)
        async with pool.acquire_many(2, image="i", limits=limits, owner="b", timeout_s=0) as boxes:
            assert all(isinstance(box, Box) and box.kind.limits == limits for box in boxes)
            assert yard.most == 3
    await pool.close()
    assert_nothing_is_left(pool, yard)


async def test_boxes_are_promised_up_to_the_memory_and_no_further(yard: Yard) -> None:
    memory_bytes = Limits().memory_bytes
    pool = BoxPool(yard, {"i": IMAGE}, warm_per_kind=0, max_memory_bytes=3 * memory_bytes)
    async with many(pool, 2), one(pool):
        with pytest.raises(ResourceExhausted):
            await one(pool, timeout_s=0).__aenter__()
    with pytest.raises(ResourceExhausted, match="max_memory_bytes"):
        many(pool, 4)
    await pool.close()


async def test_a_lease_has_a_time_to_live_below_the_limit(pool: BoxPool) -> None:
    async with one(pool, ttl_s=5.0) as box, one(pool) as other:
        assert isinstance(box, Box)
        assert isinstance(other, Box)
        assert (box.ttl_s, other.ttl_s) == (5.0, Limits().wall_s)
    for ttl_s in (0.0, -1.0, Limits().wall_s + 1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="ttl_s"):
            one(pool, ttl_s=ttl_s)


async def test_a_silent_remote_owner_loses_its_box(pool: BoxPool) -> None:
    async with one(pool) as box:
        assert isinstance(box, Box)
        pool.watch(box.id, 0.1)
        for _ in range(6):
            await asyncio.sleep(0.04)
            pool.heartbeat(box.id)
        beating = box.alive
        await asyncio.sleep(0.2)
        assert (beating, box.alive) == (True, False)
        with pytest.raises(NotFoundError, match="gone"):
            pool.heartbeat(box.id)
        with pytest.raises(UserError, match="every_s"):
            pool.watch(box.id, 0)
    with pytest.raises(NotFoundError, match="not leased"):
        pool.heartbeat(box.id)


async def test_a_closed_pool_refuses_and_wakes_who_waits(yard: Yard) -> None:
    pool = BoxPool(yard, {"i": IMAGE}, max_boxes=1, warm_per_kind=0)
    async with one(pool):
        waiting = asyncio.create_task(one(pool).__aenter__())
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(ResourceExhausted, match="closed"):
            await waiting
        with pytest.raises(ResourceExhausted, match="closed"):
            await one(pool).__aenter__()
    await pool.close()
    await asyncio.sleep(0.01)
    assert_nothing_is_left(pool, yard)


async def test_closing_waits_for_boxes_that_are_starting() -> None:
    yard = Yard(lambda: 0.02)
    pool = BoxPool(yard, {"i": IMAGE}, warm_per_kind=2)
    starting = asyncio.create_task(many(pool, 3).__aenter__())
    await asyncio.sleep(0.01)
    await pool.close()
    with pytest.raises(ResourceExhausted, match="closed"):
        await starting
    assert_nothing_is_left(pool, yard)


@pytest.mark.parametrize("seed", range(8))
async def test_cancelled_at_any_moment_nothing_is_left(seed: int) -> None:
    """Many owners, groups and single boxes, time-outs, cancellations and failures at once."""
    draw = random.Random(seed)
    yard = Yard(lambda: draw.choice((0.0, 0.0, 0.001, 0.003)))
    pool = BoxPool(yard, {"i": IMAGE}, max_boxes=MAX_BOXES, warm_per_kind=draw.choice((0, 2)))

    async def use(number: int) -> None:
        limits = Limits(pids=draw.choice((64, 65)))
        lease = pool.acquire_many(
            draw.randint(1, MAX_BOXES), image="i", limits=limits, owner=f"o{number % 3}",
            priority=draw.randint(0, 2), timeout_s=draw.choice((0, 0.002, 5)),
        )  # fmt: skip
        try:
            async with lease as boxes:
                assert len(yard.boxes) <= MAX_BOXES
                await asyncio.sleep(draw.choice((0, 0.002)))
                if draw.random() < 0.1:
                    raise SandboxLost(boxes[0].id)
        except TrialyardError:
            pass

    tasks = []
    for number in range(120):
        tasks.append(asyncio.create_task(use(number)))
        if draw.random() < 0.1:
            yard.failures.append(SandboxUnavailable("bad luck"))
        if draw.random() < 0.5:
            await asyncio.sleep(draw.choice((0, 0, 0.001)))
        if draw.random() < 0.5:
            draw.choice(tasks).cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
    for task in tasks:
        assert task.cancelled() or task.exception() is None, task
    assert yard.most <= MAX_BOXES
    async with asyncio.timeout(5):
        async with many(pool, MAX_BOXES):  # all room is there again
            pass
    await pool.close()
    assert_nothing_is_left(pool, yard)
