"""How many live boxes one machine holds, each isolated and limited, and what one costs.

Every box has the full profile (512 MB memory, 256 MB disk on tmpfs charged to memory, 64
pids, no network, seccomp, a uid of its own). Each writes a file of its own and reads it
back; then the host looks at every one from outside: the uid of PID 1, the values in its
cgroups, and that its network namespace is nobody else's. Memory is the fall of MemAvailable,
kernel slab included.

Environment: TRIALYARD_BENCH_BOXES (default 1000; `trialyard bench density --boxes N` sets it).
"""

import asyncio
import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._outcome import at_most, machine
from trialyard.core.sandbox import Limits, Sandbox
from trialyard.images.host import HOST, host_image
from trialyard.sandboxes.hierarchies import PARENT, read_hierarchies
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool

BOXES = int(os.environ.get("TRIALYARD_BENCH_BOXES", "1000"))
STARTS_AT_ONCE = 8
LIMITS = Limits()
REPORT_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Seen:
    """What the host sees of one box."""

    uid: int
    network_namespace: int
    memory_bytes: int
    pids: int


def run() -> dict[str, Any]:
    """One object as every benchmark prints it."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, Any]:
    before = _left_on_host()
    pool = NamespacePool({HOST: host_image()}, max_boxes=BOXES + 1, warm_per_kind=0)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        await stack.enter_async_context(_acquire(pool))  # what all boxes share is made once
        available_bytes = _available_bytes()
        started_s = time.perf_counter()
        boxes = await _fill(pool, stack)
        fill_s = time.perf_counter() - started_s
        each_bytes = (available_bytes - _available_bytes()) / BOXES
        started_s = time.perf_counter()
        right = sum(await asyncio.gather(*[_reads_its_own_file(box) for box in boxes]))
        read_s = time.perf_counter() - started_s
        faults = _faults_seen_from_host(boxes)
        started_s = time.perf_counter()
    teardown_s = time.perf_counter() - started_s
    left = {name: count - before[name] for name, count in _left_on_host().items()}
    return {
        "benchmark": "density",
        "machine": machine(),
        "figures": {
            "boxes live at once": len(boxes),
            "boxes that read back their own file": right,
            "faults the host saw (uid, cgroup, network namespace)": faults,
            "MB each": round(each_bytes / 1e6, 3),
            "fill s": round(fill_s, 1),
            "a command in every box s": round(read_s, 1),
            "teardown s": round(teardown_s, 1),
            "left on the host": left,
            "pool": pool.counters(),
        },
        "against": {
            "MB for the boxes on this machine": round(available_bytes / 1e6),
            "pid_max": _pid_max(),
        },
        "targets": [
            at_most("MB each", round(each_bytes / 1e6, 3), 1.0),
            at_most("fill s", round(fill_s, 1), 300),
            at_most("teardown s", round(teardown_s, 1), 300),
            at_most("faults", len(faults) + BOXES - right, 0),
            at_most("left on the host", sum(map(abs, left.values())), 0),
        ],
    }


def _acquire(pool: NamespacePool) -> contextlib.AbstractAsyncContextManager[Sandbox]:
    return pool.acquire(image=HOST, limits=LIMITS, owner="density", timeout_s=600)


async def _fill(pool: NamespacePool, stack: contextlib.AsyncExitStack) -> list[NamespaceSandbox]:
    room = asyncio.Semaphore(STARTS_AT_ONCE)
    boxes: list[NamespaceSandbox] = []

    async def add_one() -> None:
        async with room:
            box = await stack.enter_async_context(_acquire(pool))
        assert isinstance(box, NamespaceSandbox)
        boxes.append(box)
        await box.write("mine", box.id.encode())
        if len(boxes) % REPORT_EVERY == 0:
            print(f"density: {len(boxes)} boxes", flush=True, file=sys.stderr)

    await asyncio.gather(*[add_one() for _ in range(BOXES)])
    return boxes


async def _reads_its_own_file(box: NamespaceSandbox) -> bool:
    return (await box.run(["cat", "mine"], timeout_s=600)).stdout == box.id.encode()


def _faults_seen_from_host(boxes: list[NamespaceSandbox]) -> list[str]:
    """What is not as asked for: empty when every box is a box of its own, with its limits."""
    seen = [_look(box) for box in boxes]
    faults = [f"uid {one.uid}" for one in seen if one.uid < 100_000]
    faults += [
        f"memory limit {one.memory_bytes}"
        for one in seen
        if one.memory_bytes != LIMITS.memory_bytes
    ]
    faults += [
        f"pids limit {one.pids}" for one in seen if one.pids not in (LIMITS.pids, LIMITS.pids + 1)
    ]
    own = Path("/proc/self/ns/net").stat().st_ino
    for name, values in (
        ("uid", [one.uid for one in seen]),
        ("network namespace", [own, *[one.network_namespace for one in seen]]),
    ):
        if len(set(values)) != len(values):
            faults.append(f"a {name} is shared")
    return faults


def _look(box: NamespaceSandbox) -> Seen:
    status = Path(f"/proc/{box.host_pid}/status").read_text()
    uid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))
    groups = box.cgroup.directories
    version, memory = groups["memory"]
    limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
    return Seen(
        uid=uid,
        network_namespace=Path(f"/proc/{box.host_pid}/ns/net").stat().st_ino,
        memory_bytes=int(Path(memory, limit).read_text()),
        pids=int(Path(groups["pids"][1], "pids.max").read_text()),
    )


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def _pid_max() -> int:
    return int(Path("/proc/sys/kernel/pid_max").read_text())


def _left_on_host() -> dict[str, int]:
    """What boxes could leave behind, of this process and of its owner directories."""
    mine = f"p{os.getpid()}"
    groups = 0
    for hierarchy in read_hierarchies():
        parent = hierarchy.root / PARENT
        groups += sum(1 for _ in parent.glob(f"{mine}*")) if parent.is_dir() else 0
    return {
        "cgroups": groups,
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    }
