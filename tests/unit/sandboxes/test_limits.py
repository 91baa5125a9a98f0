"""Every limit is held and reported; what ended a command is the supervisor's finding."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.boxes import PYTHON, namespace_pool, processes_of_uid
from tests.timing import scaled
from trialyard.core.errors import LimitUnsupported, SandboxLost
from trialyard.core.sandbox import ExecResult, ExecStatus, Limits
from trialyard.sandboxes.hierarchies import read_hierarchies
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool

MIB = 1 << 20


async def python_under(
    pool: NamespacePool, limits: Limits, code: str, timeout_s: float = 20
) -> ExecResult:
    async with pool.acquire(image="host", limits=limits, owner="test") as box:
        argv = [PYTHON, "-I", "-S", "-c", code]
        return await box.run(argv, timeout_s=scaled(timeout_s))


async def test_memory_out_of_bounds_is_oom_whoever_dies(pool: NamespacePool) -> None:
    limits = Limits(memory_bytes=64 * MIB)
    result = await python_under(pool, limits, "x = b'x' * (200 << 20)")
    assert result.status is ExecStatus.OOM
    assert result.limits_hit == {"memory"}
    assert result.usage.memory_peak_bytes <= 64 * MIB
    # The leader lives on and exits with 0: still out of memory.
    code = "import os\nif os.fork() == 0: x = b'x' * (200 << 20)\nos.wait()"
    assert (await python_under(pool, limits, code)).status is ExecStatus.OOM


async def test_oom_is_noticed_while_the_leader_waits_and_kills_the_box(
    pool: NamespacePool,
) -> None:
    code = "import os, time\nif os.fork() == 0: x = b'x' * (200 << 20)\ntime.sleep(60)"
    async with pool.acquire(image="host", limits=Limits(memory_bytes=64 * MIB), owner="t") as box:
        started = time.monotonic()
        result = await box.run([PYTHON, "-I", "-S", "-c", code])
        assert result.status is ExecStatus.OOM
        assert time.monotonic() - started < scaled(5)
        with pytest.raises(SandboxLost, match="out of memory") as lost:
            await box.run(["true"])
        assert lost.value.host_evidence == ""


@pytest.mark.parametrize("waits", [False, True])
async def test_memory_that_runs_out_around_the_box_is_not_the_boxs_fault(waits: bool) -> None:
    pool = namespace_pool()
    async with pool.acquire(image="host", limits=Limits(), owner="test") as box:
        assert isinstance(box, NamespaceSandbox)
        version, group = box.cgroup.directories["memory"]
        name = "memory.limit_in_bytes" if version == 1 else "memory.max"
        Path(group).parent.joinpath(name).write_text(str(64 * MIB))
        big = "x = b'x' * (200 << 20)"
        if waits:
            big = f"import os, time\nif os.fork() == 0: {big}\ntime.sleep(60)"
        with pytest.raises(SandboxLost) as lost:
            await box.run([PYTHON, "-I", "-S", "-c", big], timeout_s=scaled(20))
        assert "ran out of memory" in lost.value.host_evidence
    await pool.close()


async def test_a_program_that_kills_itself_is_no_oom(box: NamespaceSandbox) -> None:
    result = await box.run(["sh", "-c", "kill -9 $$"])
    assert (result.status, result.signal) == (ExecStatus.SIGNALED, 9)
    assert result.limits_hit == frozenset()
    assert (await box.run(["sh", "-c", "exit 137"])).exit_code == 137


async def test_processes_are_counted(pool: NamespacePool) -> None:
    code = """
import os, time
n = 0
try:
    while True:
        if os.fork() == 0: time.sleep(60)
        n += 1
except OSError as error: print(n, error.errno)
"""
    result = await python_under(pool, Limits(pids=16), code)
    assert result.stdout.split()[1] == b"11"
    assert int(result.stdout.split()[0]) == 14  # 16 with PID 1 and the leader
    assert "pids" in result.limits_hit
    assert result.usage.pids_peak in (0, 16)  # 0 where the kernel keeps no peak


async def test_disk_and_inodes_have_one_quota_for_all_that_is_writable(
    pool: NamespacePool,
) -> None:
    limits = Limits(disk_bytes=8 * MIB, inodes=100)
    code = """
import os
total = 0
for place in ("/work", "/tmp", "/out", "/dev/shm", "/var/tmp", "/home/user"):
    try:
        with open(place + "/f", "wb", buffering=0) as file:
            while True: total += file.write(bytes(1 << 16))
    except OSError as error: print(error.errno)
print(total)
"""
    result = await python_under(pool, limits, code)
    *errors, total = map(int, result.stdout.split())
    assert errors == [28] * 6
    assert 7 * MIB <= total <= 8 * MIB
    assert "disk" in result.limits_hit
    code = """
n = 0
try:
    while True: open(f"/tmp/{n}", "w").close(); n += 1
except OSError as error: print(n, error.errno)
"""
    result = await python_under(pool, limits, code)
    count, error = map(int, result.stdout.split())
    assert error == 28
    assert 95 <= count <= 200
    assert "inodes" in result.limits_hit


async def test_open_files(pool: NamespacePool) -> None:
    code = """
files = []
try:
    while True: files.append(open("/dev/null"))
except OSError as error: print(len(files), error.errno)
"""
    result = await python_under(pool, Limits(open_files=64), code)
    assert result.stdout == b"61 24\n"


async def test_wall_time_of_a_command_keeps_what_was_said(box: NamespaceSandbox) -> None:
    started = time.monotonic()
    result = await box.run(["sh", "-c", "echo out; echo err >&2; sleep 60"], timeout_s=scaled(0.3))
    assert time.monotonic() - started < scaled(2)
    assert result.status is ExecStatus.TIMEOUT
    assert result.limits_hit == {"wall"}
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert result.exit_code is None
    assert (await box.run(["true"])).ok


async def test_wall_time_of_the_box_ends_the_box(pool: NamespacePool) -> None:
    async with pool.acquire(image="host", limits=Limits(wall_s=scaled(0.5)), owner="test") as box:
        result = await box.run(["sleep", "60"])
        assert result.status is ExecStatus.TIMEOUT
        assert result.limits_hit == {"wall"}
        await asyncio.sleep(0.5)
        with pytest.raises(SandboxLost, match="wall_s"):
            await box.run(["true"])


async def test_idle_time_counts_from_the_last_output(pool: NamespacePool) -> None:
    async with pool.acquire(image="host", limits=Limits(idle_s=scaled(0.4)), owner="test") as box:
        talks = "for i in 1 2 3 4; do echo $i; sleep 0.2; done"
        assert (await box.run(["sh", "-c", talks])).ok
        result = await box.run(["sh", "-c", "echo 1; sleep 60"])
        assert result.status is ExecStatus.TIMEOUT
        assert result.limits_hit == {"idle"}
        assert result.stdout == b"1\n"


async def test_cpu_seconds_count_over_the_box(pool: NamespacePool) -> None:
    limits = Limits(cpu_s=0.4)
    async with pool.acquire(image="host", limits=limits, owner="test") as box:
        burn = [PYTHON, "-I", "-S", "-c", "import time\nwhile time.process_time() < 0.3: pass"]
        assert (await box.run(burn, timeout_s=scaled(10))).ok
        result = await box.run(burn, timeout_s=scaled(10))
        assert result.status is ExecStatus.TIMEOUT
        assert result.limits_hit == {"cpu"}


async def test_cores_are_shared_out(pool: NamespacePool) -> None:
    code = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    result = await python_under(pool, Limits(cpus=0.25), code)
    assert 0.1 < result.usage.cpu_s < 0.5


async def test_output_is_cut_counted_and_at_last_killed(pool: NamespacePool) -> None:
    limits = Limits(output_bytes=10_000)
    async with pool.acquire(image="host", limits=limits, owner="test") as box:
        result = await box.run(["sh", "-c", "head -c 100000 /dev/zero; echo -n ok >&2"])
        assert result.ok
        assert (len(result.stdout), result.stdout_bytes, result.stderr) == (10_000, 100_000, b"ok")
        assert result.limits_hit == {"output"}
        result = await box.run(["sh", "-c", "cat /dev/zero"])
        assert (result.status, len(result.stdout)) == (ExecStatus.OUTPUT_LIMIT, 10_000)
        assert result.stdout_bytes > 160_000
        assert result.limits_hit == {"output"}


@pytest.mark.parametrize("missing", [{"pids"}, {"memory", "cpu", "cpuacct", "pids"}])
async def test_a_host_without_a_controller_refuses_unless_best_effort(
    missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [replace(h, controllers=h.controllers - missing) for h in read_hierarchies()]
    hierarchies = [hierarchy for hierarchy in left if hierarchy.controllers]
    monkeypatch.setattr("trialyard.sandboxes.host.read_hierarchies", lambda: hierarchies)
    names = missing - {"cpuacct"}
    pool = namespace_pool()
    with pytest.raises(LimitUnsupported, match=f"limits on {', '.join(sorted(names))}:"):
        async with pool.acquire(image="host", limits=Limits(), owner="test"):
            pass
    limits = Limits(enforcement="best-effort")
    async with pool.acquire(image="host", limits=limits, owner="test") as box:
        result = await box.run(["sh", "-c", "sleep 60 & echo on"])
        assert result.stdout == b"on\n"
        assert result.not_enforced == names
        assert result.to_json()["not_enforced"] == sorted(names)
        assert isinstance(box, NamespaceSandbox)
        uid = box.host_uid
    await pool.close()
    assert processes_of_uid(uid) == []
    assert pool.counters()["leaked"] == 0


async def test_results_of_strict_limits_say_nothing_of_enforcement(box: NamespaceSandbox) -> None:
    result = await box.run(["true"])
    assert result.not_enforced == frozenset()
    assert "not_enforced" not in result.to_json()
