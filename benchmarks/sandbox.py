"""What a sandbox costs: cold, warm, per command, per Python run, and when churned.

Every box has the full profile (512 MB memory, 256 MB disk on tmpfs charged to memory, 64
pids, no network, seccomp, a uid of its own). Beside it, in the same run: ``/bin/true`` by
subprocess, and bare ``bwrap --unshare-all``, which as root isolates nothing. CPU is what the
supervisor and its children used; a fork of a warm interpreter is counted with its zygote.
"""

import asyncio
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks._outcome import BARE_BWRAP, at_least, at_most, machine
from trialyard.core.sandbox import Limits
from trialyard.images.host import HOST, host_image
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool

TRUE = ["/bin/true"]
PYTHON = [
    "/opt/trialyard/python/bin/python3",
    "-P",
    "-s",
    "-S",
    "-c",
    "import posix; posix._exit(0)",
]
WARM_ENV = {"PYTHONHASHSEED": "0"}
N = int(os.environ.get("TRIALYARD_BENCH_N", "150"))


def run() -> dict[str, Any]:
    """One object as every benchmark prints it."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, Any]:
    true = await sample(_subprocess(TRUE))
    bare = await sample(_subprocess(BARE_BWRAP))
    async with _pool(warm_per_kind=0) as pool:
        cold = await sample(lambda: _use(pool, TRUE))
    async with _pool(warm_per_kind=4) as pool:
        await _settle(pool)
        round_trip = await sample(lambda: _use(pool, TRUE), pause_s=0.03)
        churn_s = await timed(lambda: _use(pool, TRUE), N)
        async with pool.acquire(image=HOST, limits=Limits(), owner="bench") as box:
            assert isinstance(box, NamespaceSandbox)
            command = await sample(lambda: box.run(TRUE))
            command_cpu_ms = await box_cpu_ms(pool, box, TRUE, {})
            fresh_cpu_ms = await box_cpu_ms(pool, box, PYTHON, {})
            await _heat(box)
            forked = await sample(lambda: box.run(PYTHON, env=WARM_ENV))
            forked_cpu_ms = await box_cpu_ms(pool, box, PYTHON, WARM_ENV)
    bare_churn_s = await timed(_subprocess(BARE_BWRAP), N)
    figures = {
        "cold box and /bin/true": cold,
        "warm acquire and /bin/true": round_trip,
        "command in a live box": command,
        "Python run, forked from a warm interpreter": forked,
        "CPU ms in the box: /bin/true": round(command_cpu_ms, 2),
        "CPU ms in the box: Python from nothing": round(fresh_cpu_ms, 2),
        "CPU ms in the box and its zygote: Python forked": round(forked_cpu_ms, 2),
        "boxes made, used and destroyed per second": round(N / churn_s, 1),
    }
    against = {
        "subprocess.run /bin/true": true,
        "bare bwrap --unshare-all /bin/true": bare,
        "bare bwraps per second": round(N / bare_churn_s, 1),
    }
    return {
        "benchmark": "sandbox",
        "machine": machine(),
        "figures": figures,
        "against": against,
        "targets": [
            at_most("cold start / bare bwrap", cold["p50_ms"] / bare["p50_ms"], 2.0),
            at_most("warm round trip / subprocess", round_trip["p50_ms"] / true["p50_ms"], 1.3),
            at_least("churn / bare bwrap", bare_churn_s / churn_s, 0.5),
            at_most("forked Python / from nothing, CPU", forked_cpu_ms / fresh_cpu_ms, 0.33),
        ],
    }


def _pool(**options: Any) -> "_OpenPool":
    return _OpenPool(NamespacePool({HOST: host_image()}, max_boxes=16, **options))


class _OpenPool:
    """A pool for the length of an ``async with``."""

    def __init__(self, pool: NamespacePool) -> None:
        self._pool = pool

    async def __aenter__(self) -> NamespacePool:
        await _use(self._pool, TRUE)
        return self._pool

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()


async def _use(pool: NamespacePool, argv: list[str]) -> None:
    async with pool.acquire(image=HOST, limits=Limits(), owner="bench") as box:
        result = await box.run(argv)
        assert result.ok, result


def _subprocess(argv: list[str]) -> Callable[[], Awaitable[None]]:
    async def once() -> None:
        subprocess.run(argv, check=True, capture_output=True)  # noqa: ASYNC221 - the peer

    return once


async def _settle(pool: NamespacePool) -> None:
    for _ in range(500):
        if pool.counters()["warm"] >= 4:
            return
        await asyncio.sleep(0.01)


async def _heat(box: NamespaceSandbox) -> None:
    """Until a run is a fork, whose parent is outside the box."""
    parent = [*PYTHON[:-1], "import posix; print(posix.getppid())"]
    for _ in range(200):
        if (await box.run(parent, env=WARM_ENV)).stdout == b"0\n":
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the interpreter does not get warm")


async def sample(
    once: Callable[[], Awaitable[object]], *, pause_s: float = 0.0
) -> dict[str, float]:
    """p50 and p99 of the wall time, and the mean CPU time, of N calls in ms."""
    walls_ms = []
    cpu_ms = -_cpu_ms()
    for _ in range(N):
        started_s = time.perf_counter()
        await once()
        walls_ms.append((time.perf_counter() - started_s) * 1e3)
        await asyncio.sleep(pause_s)
    cpu_ms += _cpu_ms()
    return {
        "p50_ms": round(statistics.median(walls_ms), 3),
        "p99_ms": round(statistics.quantiles(walls_ms, n=100)[98], 3),
        "cpu_ms": round(cpu_ms / N, 3),
    }


async def timed(once: Callable[[], Awaitable[object]], count: int) -> float:
    started_s = time.perf_counter()
    for _ in range(count):
        await once()
    return time.perf_counter() - started_s


async def box_cpu_ms(
    pool: NamespacePool, box: NamespaceSandbox, argv: list[str], env: dict[str, str]
) -> float:
    """Mean CPU of one run, from the box's cgroup and the zygotes' own clocks."""
    before_ms = box.cgroup.cpu_us() / 1e3 + _zygotes_cpu_ms(pool)
    for _ in range(N):
        assert (await box.run(argv, env=env)).ok
    return (box.cgroup.cpu_us() / 1e3 + _zygotes_cpu_ms(pool) - before_ms) / N


def _zygotes_cpu_ms(pool: NamespacePool) -> float:
    return sum(
        int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
        for pid in pool.zygote_pids()
    )


def _cpu_ms() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return 1e3 * (own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime)
