"""Every limit, hit on purpose: how the command ends, and that `limits_hit` says why."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.boxes import BACKENDS, PYTHON, namespace_pool
from tests.timing import scaled
from trialyard.core.errors import SandboxLost
from trialyard.core.image import Image
from trialyard.core.sandbox import ExecStatus, Limits, SandboxPool
from trialyard.sandboxes.pool import NamespacePool

MIB = 1 << 20
WRITABLE = ("/work", "/tmp", "/out", "/dev/shm", "/var/tmp", "/home/user")
FORK = """
import os, time
try:
    while True:
        if os.fork() == 0: time.sleep(60)
except OSError: pass
"""


@dataclass(frozen=True)
class Hit:
    limits: Limits
    argv: tuple[str, ...]
    status: ExecStatus
    hit: str
    timeout_s: float | None = scaled(30.0)


def python(code: str) -> tuple[str, ...]:
    return PYTHON, "-I", "-S", "-c", code


def fill(place: str) -> tuple[str, ...]:
    return "sh", "-c", f"head -c 20000000 /dev/zero > {place}/f; true"


def litter(place: str) -> tuple[str, ...]:
    return python(
        f"import os\ntry:\n    for n in range(9999): open('{place}/%d' % n, 'w').close()\n"
        "except OSError: pass"
    )


EXITED, TIMEOUT = ExecStatus.EXITED, ExecStatus.TIMEOUT
HITS = {
    "memory": Hit(
        Limits(memory_bytes=64 * MIB), python("x = b'x' * (200 << 20)"), ExecStatus.OOM, "memory"
    ),
    "memory by files in /dev/shm": Hit(
        Limits(memory_bytes=32 * MIB, disk_bytes=256 * MIB),
        ("sh", "-c", "head -c 200000000 /dev/zero > /dev/shm/f"),
        ExecStatus.OOM,
        "memory",
    ),
    "pids": Hit(Limits(pids=12), python(FORK), EXITED, "pids"),
    "cpu seconds": Hit(Limits(cpu_s=0.3), python("while True: pass"), TIMEOUT, "cpu"),
    "wall of the command": Hit(Limits(), ("sleep", "60"), TIMEOUT, "wall", timeout_s=0.3),
    "wall of the box": Hit(
        Limits(wall_s=scaled(0.4)), ("sleep", "60"), TIMEOUT, "wall", timeout_s=None
    ),
    "idle": Hit(Limits(idle_s=0.3), ("sh", "-c", "echo a; sleep 60"), TIMEOUT, "idle"),
    "output": Hit(
        Limits(output_bytes=1000), ("sh", "-c", "head -c 5000 /dev/zero"), EXITED, "output"
    ),
    "output without end": Hit(
        Limits(output_bytes=1000), ("cat", "/dev/zero"), ExecStatus.OUTPUT_LIMIT, "output"
    ),
    **{
        f"disk in {place}": Hit(Limits(disk_bytes=4 * MIB), fill(place), EXITED, "disk")
        for place in WRITABLE
    },
    **{
        f"inodes in {place}": Hit(Limits(inodes=64), litter(place), EXITED, "inodes")
        for place in WRITABLE
    },
}


@pytest.fixture(params=BACKENDS)
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[SandboxPool]:
    made = namespace_pool(max_boxes=2, backend=request.param)
    yield made
    await made.close()


@pytest.mark.parametrize("name", HITS)
async def test_a_limit_that_is_hit_is_named(pool: SandboxPool, name: str) -> None:
    case = HITS[name]
    async with pool.acquire(image="host", limits=case.limits, owner="test") as box:
        result = await box.run(case.argv, timeout_s=case.timeout_s)
        assert result.status is case.status
        assert result.limits_hit == {case.hit}


async def test_what_stays_below_every_limit_hits_none(pool: SandboxPool) -> None:
    limits = Limits(cpu_s=scaled(20), idle_s=scaled(20), wall_s=scaled(60))
    async with pool.acquire(image="host", limits=limits, owner="test") as box:
        result = await box.run(["sh", "-c", "echo a > f; cat f; sleep 0.1"], timeout_s=scaled(20))
        assert (result.stdout, result.limits_hit) == (b"a\n", frozenset())


async def test_open_files_are_counted(pool: SandboxPool) -> None:
    code = (
        "files = []\ntry:\n    while True: files.append(open('/dev/null'))\n"
        "except OSError as error: print(len(files), error.errno)"
    )
    async with pool.acquire(image="host", limits=Limits(open_files=40), owner="test") as box:
        assert (await box.run(python(code))).stdout == b"37 24\n"


async def test_after_the_time_of_the_box_nothing_runs(pool: SandboxPool) -> None:
    async with pool.acquire(image="host", limits=Limits(wall_s=0.3), owner="test") as box:
        await asyncio.sleep(0.8)
        with pytest.raises(SandboxLost, match="wall_s"):
            await box.run(["true"])


@pytest.mark.parametrize("cpus", [0.25, 1.0, 1.5, 64.0])
async def test_programs_see_the_cores_that_they_may_use(pool: SandboxPool, cpus: float) -> None:
    host = os.cpu_count() or 1
    wanted = min(host, -int(-cpus // 1))
    code = "import os, multiprocessing as m; print(os.cpu_count(), m.cpu_count())"
    async with pool.acquire(image="host", limits=Limits(cpus=cpus), owner="test") as box:
        assert (await box.run(python(code))).stdout.split() == [str(wanted).encode()] * 2
        script = "nproc; getconf _NPROCESSORS_ONLN; getconf _NPROCESSORS_CONF"
        assert (await box.run(["sh", "-c", script])).stdout.split() == [str(wanted).encode()] * 3
        # Nothing is pinned: any core of the host may serve the box.
        code = "import os; print(len(os.sched_getaffinity(0)))"
        assert int((await box.run(python(code))).stdout) == len(os.sched_getaffinity(0))
        mine = await box.run(["nproc"], env={"OMP_NUM_THREADS": "7"})
        assert mine.stdout == b"7\n"


async def test_the_writable_layer_of_an_image_counts_too(tmp_path: Path) -> None:
    root = tmp_path / "image"
    for name in ("usr", "proc", "dev", "etc", "data", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "data").chmod(0o777)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    os.chmod(tmp_path, 0o755)  # noqa: PTH101 - pytest makes it private
    image = Image("layers", "1", (str(root),))
    pool = NamespacePool({"layers": image}, warm_per_kind=0, layers={"/usr": Path("/usr")})
    limits = Limits(disk_bytes=4 * MIB, inodes=100)
    async with pool.acquire(image="layers", limits=limits, owner="test") as box:
        result = await box.run(fill("/data"))
        assert result.status is EXITED
        assert result.limits_hit == {"disk"}
    async with pool.acquire(image="layers", limits=limits, owner="test") as box:
        script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); : > /data/$i || exit 0; done"
        result = await box.run(["sh", "-c", script])
        assert result.status is EXITED
        assert result.limits_hit == {"inodes"}
    await pool.close()
