"""Short test runs: a file of five tests, each run in a fresh box by a warm interpreter.

Sustained over TRIALYARD_BENCH_N runs (default 1,000), with refill and teardown of the boxes
inside the clock. Beside it, in the same run and with as many callers: ``python -m pytest`` of
the same file without any sandbox.
"""

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks._outcome import at_least, machine
from trialyard.core.sandbox import Limits
from trialyard.graders.layers import PYTEST, PYTHON, PYTHON_FLAGS, run_environment
from trialyard.images.host import HOST, host_image
from trialyard.run.wiring.boxes import WARM_IMPORTS, layers
from trialyard.sandboxes.pool import NamespacePool
from trialyard.sandboxes.zygote import WarmImport

N = int(os.environ.get("TRIALYARD_BENCH_N", "1000"))
N_PEER = max(10, N // 20)
CALLERS = 2 * (os.cpu_count() or 1)
TESTS = "".join(f"def test_{i}():\n    assert {i} + 1 == {i + 1}\n\n\n" for i in range(5))
PROGRAM = (
    f"import os, sys; print('parent', os.getppid()); sys.path.insert(0, {PYTEST!r}); "
    "import pytest; "
    "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'test_five.py']))"
)
MODULES = next(each.modules for each in WARM_IMPORTS if each.directory == PYTEST)
WARM = WarmImport(trigger="pytest.main", modules=MODULES, directory=PYTEST)


def run() -> dict[str, Any]:
    """One object as every benchmark prints it."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "test_five.py").write_text(TESTS)
        return asyncio.run(_measure(directory))


async def _measure(directory: str) -> dict[str, Any]:
    peer_before = await _per_second(lambda: _bare(directory), N_PEER)
    ours, forked = await _ours()
    peer_after = await _per_second(lambda: _bare(directory), N_PEER)
    peer = (peer_before + peer_after) / 2
    ratio = round(ours / peer, 2)
    return {
        "benchmark": "pytest",
        "machine": machine(),
        "figures": {
            "runs per second, each in a fresh box": round(ours, 1),
            "runs": N,
            "of these by a warm interpreter": forked,
        },
        "against": {
            "python -m pytest per second, no sandbox": round(peer, 2),
            "the same before and after": [round(peer_before, 2), round(peer_after, 2)],
        },
        "targets": [at_least("ratio", ratio, 12)],
    }


async def _ours() -> tuple[float, int]:
    """Runs per second, and how many were forks."""
    pool = NamespacePool(
        {HOST: host_image()},
        max_boxes=4 * CALLERS,
        warm_per_kind=CALLERS,
        layers=layers(),
        warm_imports=[WARM],
    )
    forked = 0

    async def once() -> None:
        nonlocal forked
        async with pool.acquire(image=HOST, limits=Limits(), owner="bench") as box:
            await box.write("test_five.py", TESTS.encode())
            forked += await _five_pass(box)

    try:
        for _ in range(20):  # the interpreter gets warm
            await once()
            await asyncio.sleep(0.1)
        forked = 0
        return await _per_second(once, N), forked
    finally:
        await pool.close()


async def _five_pass(box: Any) -> bool:
    """Run the file; True when a warm interpreter did, whose parent is outside the box."""
    result = await box.run([PYTHON, *PYTHON_FLAGS, "-c", PROGRAM], env=run_environment(0))
    assert result.ok, result
    assert b"5 passed" in result.stdout, result
    return b"parent 0\n" in result.stdout


async def _bare(directory: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_five.py"),
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    output, _ = await process.communicate()
    assert b"5 passed" in output, output


async def _per_second(once: Callable[[], Awaitable[None]], count: int) -> float:
    """`count` calls by CALLERS at a time."""
    numbers = itertools.count()

    async def caller() -> None:
        while next(numbers) < count:
            await once()

    started_s = time.perf_counter()
    await asyncio.gather(*[caller() for _ in range(CALLERS)])
    return count / (time.perf_counter() - started_s)
