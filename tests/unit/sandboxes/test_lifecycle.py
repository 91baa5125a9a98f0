"""Boxes end: by us, by their owner's death, by somebody on the host. Nothing is left."""

# ruff: noqa: ASYNC240 - the host is looked at directly
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.boxes import (
    child_processes,
    groups_of,
    namespace_pool,
    processes_of_owner,
    processes_of_uid,
)
from tests.timing import scaled
from trialyard.core.errors import SandboxLost
from trialyard.core.sandbox import ExecStatus, Limits
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool

SUPERVISOR = """
import asyncio, sys
from tests.boxes import namespace_pool
from trialyard.core.sandbox import Limits
async def main():
    pool = namespace_pool(warm_per_kind=1)
    async with pool.acquire(image="host", limits=Limits(), owner="t") as box:
        await box.run(["sh", "-c", "setsid sleep 60 & exit 0"])
        print(box.host_uid, pool._host.owner.name, flush=True)
        await box.run(["sleep", "60"])
asyncio.run(main())
"""


BUSY_SUPERVISOR = """
import asyncio
from tests.boxes import namespace_pool
from trialyard.core.sandbox import Limits
async def use(pool):
    while True:
        async with pool.acquire(image="host", limits=Limits(), owner="t") as box:
            await box.run(["true"])
async def main():
    pool = namespace_pool(max_boxes=6, warm_per_kind=3)
    print(pool.supervisor, flush=True)
    await asyncio.gather(*(use(pool) for _ in range(3)))
asyncio.run(main())
"""


def until(condition: Callable[[], bool], timeout_s: float = 5) -> bool:
    deadline = time.monotonic() + scaled(timeout_s)
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def start_supervisor() -> tuple[subprocess.Popen[str], int, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    uid, owner = process.stdout.readline().split()
    process.stdout.close()
    return process, int(uid), owner


def test_killing_the_supervisor_ends_its_boxes_and_leaves_nothing() -> None:
    supervisor, uid, owner = start_supervisor()
    assert len(processes_of_uid(uid)) >= 3
    supervisor.kill()
    supervisor.wait()
    assert until(lambda: processes_of_uid(uid) == [])
    assert until(lambda: groups_of(owner) == [])
    assert until(lambda: not Path("/run/trialyard/owners", owner).exists())


def test_killing_the_supervisor_at_any_moment_leaves_nothing() -> None:
    """Also while boxes are being set up, when bubblewrap's own precaution does not hold yet."""
    owners = []
    for delay_s in (0.0, 0.002, 0.005, 0.009, 0.014, 0.02, 0.03, 0.05):
        supervisor = subprocess.Popen(
            [sys.executable, "-c", BUSY_SUPERVISOR], stdout=subprocess.PIPE, text=True
        )
        assert supervisor.stdout is not None
        owners.append(supervisor.stdout.readline().strip())
        time.sleep(delay_s)
        supervisor.kill()
        supervisor.wait()
        supervisor.stdout.close()
    for owner in owners:
        assert until(lambda owner=owner: groups_of(owner) == []), owner  # type: ignore[misc]
        assert until(lambda owner=owner: not Path("/run/trialyard/owners", owner).exists())  # type: ignore[misc]


async def test_the_next_owner_sweeps_what_is_left_when_the_keeper_dies_too() -> None:
    supervisor, uid, owner = start_supervisor()
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text()
    for child in children.split():
        if "keeper" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(int(child), signal.SIGKILL)
    supervisor.kill()
    supervisor.wait()
    assert until(lambda: processes_of_uid(uid) == [])
    assert groups_of(owner)
    pool = namespace_pool()
    async with pool.acquire(image="host", limits=Limits(), owner="test"):
        assert groups_of(owner) == []
        assert not Path("/run/trialyard/owners", owner).exists()
    await pool.close()


@pytest.mark.parametrize("victim", ["init", "bubblewrap", "all"])
async def test_a_box_killed_from_the_host_is_lost_with_evidence(
    box: NamespaceSandbox, victim: str
) -> None:
    task = asyncio.create_task(box.run(["sleep", "60"]))
    await asyncio.sleep(0.2)
    pids = sorted(processes_of_uid(box.host_uid), key=lambda pid: pid == box.host_pid)
    if victim == "init":
        pids = [box.host_pid]
    elif victim == "bubblewrap":
        pids = [pid for pid in pids if pid in child_processes()]
    started = time.monotonic()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxLost) as lost:
        await task
    assert time.monotonic() - started < scaled(2)
    assert "outside" in lost.value.host_evidence
    with pytest.raises(SandboxLost) as lost:
        await box.run(["true"])
    assert "outside" in lost.value.host_evidence


async def test_an_idle_box_killed_from_the_host_is_lost_with_evidence(
    box: NamespaceSandbox,
) -> None:
    os.kill(box.host_pid, signal.SIGKILL)
    with pytest.raises(SandboxLost) as lost:
        await box.run(["true"])
    assert "outside" in lost.value.host_evidence
    with pytest.raises(SandboxLost) as lost:
        await box.read("x")
    assert "outside" in lost.value.host_evidence


async def test_a_victim_that_dies_before_its_box_makes_no_result(box: NamespaceSandbox) -> None:
    task = asyncio.create_task(box.run(["sleep", "60"]))
    await asyncio.sleep(0.2)
    [sleeper] = [
        pid for pid in processes_of_uid(box.host_uid)
        if pid != box.host_pid and pid not in child_processes()
    ]  # fmt: skip
    os.kill(sleeper, signal.SIGKILL)
    await asyncio.sleep(0.01)
    os.kill(box.host_pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await task


async def test_no_program_in_the_box_can_end_it(box: NamespaceSandbox) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGSEGV):
        await box.run(["sh", "-c", f"kill -{number.value} 1"])
    assert (await box.run(["sh", "-c", "kill -9 -1"])).status in (
        ExecStatus.SIGNALED,
        ExecStatus.EXITED,
    )
    assert (await box.run(["true"])).ok


async def test_closing_a_box_during_a_command_is_no_result(pool: NamespacePool) -> None:
    async with pool.acquire(image="host", limits=Limits(), owner="test") as box:
        task = asyncio.create_task(box.run(["sleep", "60"]))
        await asyncio.sleep(0.1)
        await box.close()
        with pytest.raises(SandboxLost, match="closed"):
            await task


async def test_two_hundred_boxes_leave_nothing() -> None:
    fds, mounts = len(os.listdir("/proc/self/fd")), Path("/proc/self/mounts").read_text()
    others = set(child_processes())  # of pools that other tests hold
    pool = namespace_pool(max_boxes=4, warm_per_kind=2)
    uids = set()

    async def use(number: int) -> None:
        async with pool.acquire(image="host", limits=Limits(), owner=str(number)) as box:
            assert isinstance(box, NamespaceSandbox)
            uids.add(box.host_uid)
            await box.write("n", str(number).encode())
            result = await box.run(["sh", "-c", "cat n; sleep 60 &"])
            assert result.stdout == str(number).encode()

    for first in range(0, 200, 4):
        await asyncio.gather(*(use(first + i) for i in range(4)))
    owner = pool._host.owner.name if pool._host else ""
    assert groups_of(owner)
    await pool.close()
    counters = pool.counters()
    assert counters["created"] == counters["destroyed"] >= 200
    assert counters["leaked"] == counters["live"] == counters["warm"] == 0
    assert set(child_processes()) <= others
    assert len(uids) >= 4
    assert processes_of_owner(owner) == []
    assert groups_of(owner) == []
    assert not Path("/run/trialyard/owners", owner).exists()
    assert Path("/proc/self/mounts").read_text() == mounts
    assert len(os.listdir("/proc/self/fd")) == fds


async def warm(pool: NamespacePool, count: int) -> None:
    for _ in range(int(scaled(5) / 0.01)):
        if pool.counters()["warm"] == count:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{pool.counters()}: never {count} warm boxes")


async def test_warm_boxes_are_ready_and_refilled() -> None:
    pool = namespace_pool(max_boxes=8, warm_per_kind=3)
    async with pool.acquire(image="host", limits=Limits(), owner="test"):
        await warm(pool, 3)
        created = pool.counters()["created"]
        started = time.monotonic()
        async with pool.acquire(image="host", limits=Limits(), owner="test") as box:
            assert time.monotonic() - started < scaled(0.1)
            assert pool.counters()["created"] == created
            assert (await box.run(["true"])).ok
    await pool.close()


async def test_a_warm_box_that_died_is_not_handed_out() -> None:
    pool = namespace_pool(max_boxes=8, warm_per_kind=1)
    async with pool.acquire(image="host", limits=Limits(), owner="test"):
        await warm(pool, 1)
        [[unused]] = pool._shelves._boxes.values()
        assert isinstance(unused, NamespaceSandbox)
        os.kill(unused.host_pid, signal.SIGKILL)
        await asyncio.sleep(0.1)
        async with pool.acquire(image="host", limits=Limits(), owner="test") as box:
            assert (await box.run(["true"])).ok
        assert pool.counters()["lost"] == 1
    await pool.close()


async def test_a_forgotten_box_is_reaped_at_its_deadline() -> None:
    pool = namespace_pool()
    lease = pool.acquire(image="host", limits=Limits(wall_s=0.3), owner="forgetful")
    box = await lease.__aenter__()
    assert isinstance(box, NamespaceSandbox)
    assert pool.leases() == {box.id: "forgetful"}
    await asyncio.sleep(scaled(1))
    assert processes_of_uid(box.host_uid) == []
    await lease.__aexit__(None, None, None)
    await pool.close()
