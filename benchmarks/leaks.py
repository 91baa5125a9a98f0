"""What is left after many boxes, and after their supervisor was killed: nothing.

First `TRIALYARD_LEAK_CYCLES` boxes (default 10,000) are made, used and destroyed by one
supervisor; then `TRIALYARD_LEAK_KILLS` supervisors (default 200) are killed with SIGKILL at
random moments, every second one together with its keeper, so that only the next start or
`sandbox reap` can tidy up. Kernel memory is system-wide, so bare bubblewraps run beside.
"""

import asyncio
import os
import random
import subprocess
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks._killed_owners import kill_owners
from benchmarks._outcome import BARE_BWRAP, at_most, machine, zero
from trialyard.core.sandbox import Limits
from trialyard.images.host import HOST, host_image
from trialyard.sandboxes.hierarchies import PARENT, read_hierarchies
from trialyard.sandboxes.host import RUNTIME_DIRECTORY
from trialyard.sandboxes.pool import NamespacePool

CYCLES = int(os.environ.get("TRIALYARD_LEAK_CYCLES", "10000"))
KILLS = int(os.environ.get("TRIALYARD_LEAK_KILLS", "200"))
_WARM_UP = 400
_CALLERS = 4
_BARE = 500
_COMMANDS = (
    ["true"],
    ["sh", "-c", "sleep 60 & echo x > f"],
    ["sh", "-c", "for i in 1 2 3 4 5; do (sleep 60 &) ; done; head -c 100000 /dev/zero > g"],
)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a supervisor has at one moment."""

    descriptors: int
    threads: int
    processes: int
    mounts: int
    cgroups: int
    files: int
    table_bytes: int = field(metadata={"may_vary": True})
    resident_kib: int = field(metadata={"may_vary": True})
    slab_kib: int = field(metadata={"may_vary": True})
    kernel_cgroups: int = field(metadata={"may_vary": True})


def run() -> dict[str, Any]:
    """One object as every benchmark prints it."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, Any]:
    outside = _holdings("")
    pool = NamespacePool({HOST: host_image()}, max_boxes=16, warm_per_kind=2)
    await _churn(pool, _WARM_UP)
    name = pool.supervisor
    before = _holdings(name)
    bare_slab_kib = _bare_slab_kib()
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await _churn(pool, CYCLES)
    churn_s = loop.time() - started_s
    after = _holdings(name)
    await pool.close()
    counters, closed = pool.counters(), _holdings(name)
    kills = await asyncio.to_thread(kill_owners, KILLS, random.Random(1))
    growth = _difference(before, after)
    left = {key: value for key, value in _difference(outside, closed).items() if _is_exact(key)}
    return {
        "benchmark": "leaks",
        "machine": machine(),
        "figures": {
            "boxes": CYCLES,
            "boxes per second": round(CYCLES / churn_s, 1),
            **{f"growth over them: {key}": value for key, value in growth.items()},
            **{f"left when closed: {key}": value for key, value in left.items()},
            "boxes leaked": counters["leaked"],
            "boxes made and not destroyed": counters["created"] - counters["destroyed"],
            "supervisors killed": KILLS,
            "boxes that the killed had": kills.boxes,
            "left after them": kills.left[:5],
            "seconds until all was gone, longest": round(kills.longest_s, 2),
        },
        "against": {"slab KiB per 10,000 bare bwraps": bare_slab_kib * 10_000 // _BARE},
        "targets": [
            *(zero(f"growth: {key}", growth[key]) for key in growth if _is_exact(key)),
            *(zero(f"left: {key}", value) for key, value in left.items()),
            zero("boxes leaked", counters["leaked"]),
            zero("boxes not destroyed", counters["created"] - counters["destroyed"]),
            zero("killed supervisors that left something", len(kills.left)),
            at_most("resident KiB per 1000 boxes", growth["resident_kib"] / (CYCLES / 1000), 256),
        ],
    }


async def _churn(pool: NamespacePool, count: int) -> None:
    """`count` boxes by some callers at once; afterwards only the unused ones are there."""
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            async with pool.acquire(image=HOST, limits=Limits(), owner=f"o{number % 7}") as box:
                await box.write("n", b"x" * 100)
                result = await box.run(_COMMANDS[number % len(_COMMANDS)])
                assert result.ok, result

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    for _ in range(2000):
        counters = pool.counters()
        existing = counters["created"] - counters["destroyed"]
        if counters["warm"] == existing == 2:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"boxes do not go: {pool.counters()}")


def _holdings(supervisor: str) -> Holdings:
    groups = [hierarchy.root / PARENT / supervisor for hierarchy in read_hierarchies()]
    owned = RUNTIME_DIRECTORY / "owners" / supervisor
    table = owned / "boxes.jsonl"
    memory = _keyed("/proc/meminfo")
    return Holdings(
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        processes=len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=sum(_count(group) for group in groups) if supervisor else 0,
        files=_count(owned) if supervisor else 0,
        table_bytes=table.stat().st_size if supervisor and table.exists() else 0,
        resident_kib=_keyed("/proc/self/status")["VmRSS"],
        slab_kib=memory["Slab"],
        kernel_cgroups=_kernel_cgroups(),
    )


def _count(directory: Path) -> int:
    """Directories and other files below, itself included; files that a cgroup has are not ours."""
    if not directory.is_dir():
        return 0
    is_group = (directory / "cgroup.procs").exists()
    inner = [len(names) + (0 if is_group else len(files)) for _, names, files in os.walk(directory)]
    return 1 + sum(inner)


def _keyed(path: str) -> dict[str, int]:
    """Numbers of a file of ``Name: value kB`` lines."""
    pairs = (line.split(":", 1) for line in Path(path).read_text().splitlines())
    return {k: int(v.split()[0]) for k, v in pairs if v.split() and v.split()[0].isdigit()}


def _kernel_cgroups() -> int:
    """Memory cgroups that the kernel still holds, removed ones included."""
    for line in Path("/proc/cgroups").read_text().splitlines():
        if line.startswith("memory"):
            return int(line.split()[2])
    return 0


def _bare_slab_kib() -> int:
    before = _keyed("/proc/meminfo")["Slab"]
    for _ in range(_BARE):
        subprocess.run(BARE_BWRAP, check=True, capture_output=True)
    return _keyed("/proc/meminfo")["Slab"] - before


def _difference(before: Holdings, after: Holdings) -> dict[str, int]:
    return {
        each.name: getattr(after, each.name) - getattr(before, each.name)
        for each in fields(Holdings)
    }


def _is_exact(name: str) -> bool:
    return not next(each for each in fields(Holdings) if each.name == name).metadata
