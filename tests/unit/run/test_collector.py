"""The collector: staleness is bounded from both sides and nothing is started twice."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records import group_of
from trialyard.core.trajectory import Group
from trialyard.run.collector import Collector


class Rollouts:
    """Starts groups that finish when told; records the version each began with."""

    def __init__(self) -> None:
        self.version = 0
        self.started: list[int] = []
        self.running: dict[int, asyncio.Future[Group]] = {}

    async def start(self, index: int) -> Group:
        self.started.append(index)
        version = self.version
        future: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        self.running[index] = future
        await future
        return group_of(index, version=version)

    def finish(self, *indices: int) -> None:
        for index in indices:
            self.running.pop(index).set_result(group_of(index))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_synchronous_training_starts_one_batch_at_a_time() -> None:
    rollouts = Rollouts()
    collector = Collector(rollouts.start, batch_size=2, max_staleness=0)
    batch = asyncio.ensure_future(collector.batch(0))
    await settle()
    assert rollouts.started == [0, 1]
    rollouts.finish(1, 0)
    assert [g.id for g in (await batch).groups] == ["train/0000000", "train/0000001"]
    await settle()
    assert rollouts.started == [0, 1], "nothing may start before the step is done"
    collector.step_done()
    await settle()
    assert rollouts.started == [0, 1, 2, 3]
    await collector.close()


async def test_rollouts_run_ahead_by_the_staleness_bound_and_no_further() -> None:
    rollouts = Rollouts()
    collector = Collector(rollouts.start, batch_size=2, max_staleness=2)
    batch = asyncio.ensure_future(collector.batch(0))
    await settle()
    assert rollouts.started == list(range(6))
    rollouts.finish(4, 5)
    assert {g.id for g in (await batch).groups} == {"train/0000004", "train/0000005"}
    await settle()
    assert len(rollouts.started) == 6
    await collector.close()


async def test_a_group_too_old_at_consumption_is_dropped_and_refilled() -> None:
    rollouts = Rollouts()
    collector = Collector(rollouts.start, batch_size=1, max_staleness=1)
    first = asyncio.ensure_future(collector.batch(0))
    await settle()
    rollouts.finish(0)
    await first
    rollouts.version = 1
    collector.step_done()
    second = asyncio.ensure_future(collector.batch(1))
    await settle()
    rollouts.finish(2)
    await second
    rollouts.version = 2
    collector.step_done()
    third = asyncio.ensure_future(collector.batch(2))
    await settle()
    rollouts.finish(1)  # began with version 0, two behind
    await settle()
    assert not third.done()
    rollouts.finish(3)
    batch = await third
    assert [group.id for group in batch.groups] == ["train/0000003"]
    [(dropped, reason)] = batch.dropped
    assert dropped.id == "train/0000001"
    assert "2 versions behind" in reason
    await collector.close()


async def test_a_group_that_raises_stops_the_run_with_its_error() -> None:
    async def start(index: int) -> Group:
        raise RuntimeError(f"group {index}")

    collector = Collector(start, batch_size=1, max_staleness=0)
    with pytest.raises(RuntimeError, match="group 0"):
        await collector.batch(0)
    await collector.close()


async def test_restored_groups_are_used_first_and_done_ones_never_start_again() -> None:
    rollouts = Rollouts()
    collector = Collector(
        rollouts.start,
        batch_size=2,
        max_staleness=1,
        first_step=3,
        restored=[(7, group_of(7, version=3))],
        skip=[0, 1, 2, 3, 4, 5],
    )
    batch = asyncio.ensure_future(collector.batch(3))
    await settle()
    assert rollouts.started == [6, 8, 9]
    rollouts.finish(9)
    await settle()
    assert not batch.done(), "group 9 began with version 0 and is too old for version 3"
    batch.cancel()
    await collector.close()


async def test_closing_cancels_what_runs() -> None:
    rollouts = Rollouts()
    collector = Collector(rollouts.start, batch_size=4, max_staleness=0)
    collector.dispatch()
    await settle()
    assert collector.in_flight == 4
    await collector.close()
    assert collector.in_flight == 0


@given(
    batch_size=st.integers(1, 4),
    max_staleness=st.integers(0, 3),
    choices=st.lists(st.integers(0, 1000), min_size=5, max_size=60),
)
def test_no_batch_ever_breaks_the_bound_and_each_index_is_used_once(
    batch_size: int, max_staleness: int, choices: list[int]
) -> None:
    async def scenario() -> None:
        rollouts = Rollouts()
        collector = Collector(rollouts.start, batch_size=batch_size, max_staleness=max_staleness)
        used: Counter[str] = Counter()
        order = iter(choices)
        for version in range(4):
            rollouts.version = version
            batch = asyncio.ensure_future(collector.batch(version))
            while not batch.done():
                await settle()
                if batch.done():
                    break
                running = sorted(rollouts.running)
                rollouts.finish(running[next(order, 0) % len(running)])
            for group in batch.result().groups:
                used[group.id] += 1
                assert version - (group.oldest_version or 0) <= max_staleness
            used.update(group.id for group, _ in batch.result().dropped)
            collector.step_done()
        assert max(used.values()) == 1
        await collector.close()

    asyncio.run(scenario())
