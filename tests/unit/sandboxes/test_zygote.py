"""A fork of a warm interpreter is a fresh start in everything but its cost."""

# ruff: noqa: ASYNC240, E501 - the host is looked at directly; programs stay in one piece
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.boxes import (
    PYTHON,
    WARM_ENV,
    a_box,
    namespace_pool,
    processes_of_uid,
    status_of,
    warm_interpreter,
)
from trialyard.core.errors import SandboxLost
from trialyard.core.sandbox import ExecStatus, Limits
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool
from trialyard.sandboxes.zygote import WarmImport, start_kind

START = (PYTHON, "-P", "-s", "-S")
OWN_PROCESSES = 2


@pytest.fixture
async def pool() -> AsyncIterator[NamespacePool]:
    made = namespace_pool(max_boxes=4)
    await warm_interpreter(made, START)
    yield made
    await made.close()
    assert made.counters()["leaked"] == 0


@pytest.fixture
async def box(pool: NamespacePool) -> AsyncIterator[NamespaceSandbox]:
    async with a_box(pool) as made:
        yield made


@pytest.fixture
async def fresh_box() -> AsyncIterator[NamespaceSandbox]:
    """A box whose interpreters all start from nothing."""
    pool = namespace_pool(warm_interpreters=False)
    async with a_box(pool) as made:
        yield made
    await pool.close()


PROGRAMS = {
    "identity": """
import sys, os, json
print(json.dumps([sys.argv, sys.orig_argv, sys.flags.hash_randomization, hash("x"), dict(os.environ),
    os.getcwd(), os.getuid(), os.getgid(), os.getgroups(), os.getppid() in (0, 1), os.getsid(0) == os.getpid(),
    sys.path, sys.executable, sys.prefix, sorted(sys.modules), sorted(globals()), __name__,
    sys.stdin.seekable(), sys.stdout.seekable(), sys.stdout.line_buffering, sys.stdout.encoding,
    sys.stdin.read(), sys.flags.safe_path, os.umask(0), sorted(os.listdir("/proc/self/fd")),
    open("/proc/self/comm").read(), os.getpriority(0, 0), sys.getrecursionlimit()]))
""",
    "status": """
wanted = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "SigCgt", "Umask",
    "Threads", "CoreDumping", "Cpus_allowed_list")
for line in open("/proc/self/status"):
    if line.startswith(wanted): print(line.split())
for line in open("/proc/self/limits"):
    if "file locks" not in line: print(line.split())
import os
print([os.readlink("/proc/self/ns/" + name) == os.readlink(f"/proc/{os.getpid()}/ns/" + name)
    for name in ("user", "pid", "mnt")], sorted(os.listdir("/proc/self/task")) == [str(os.getpid())])
print(os.stat("/proc/self").st_uid, open("/proc/self/oom_score_adj").read())
""",
    "uncaught": "def f(): 1 / 0\nf()",
    "syntax": "def f(:\n  pass",
    "exit code": "raise SystemExit(7)",
    "exit text": "raise SystemExit('sorry')",
    "exit in a function": "import sys\ndef f(): sys.exit(3)\nf()",
    "signal": "import os; os.kill(os.getpid(), 15)",
    "segfault": "import os; os.kill(os.getpid(), 11)",
    "interrupt": "raise KeyboardInterrupt",
    "at exit": "import atexit; atexit.register(print, 'bye'); print('hello')",
    "chained": "try: 1 / 0\nexcept ZeroDivisionError as e: raise ValueError('x') from e",
    "threads": "import threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join()",
    "fork": "import os\nif os.fork() == 0: print('child', flush=True); os._exit(0)\nos.wait(); print('parent')",
    "subprocess": "import subprocess; print(subprocess.run(['sh', '-c', 'echo $A; exit 3'], capture_output=True))",
    "main module": "import sys; x = 1; print(sys.modules['__main__'].x, sorted(vars()))",
    "excepthook": "import sys; sys.excepthook = lambda *e: print('mine', e[0]); 1 / 0",
    "output": "import sys; sys.stdout.write('a' * 100000); sys.stderr.write('b' * 100000)",
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_fork_behaves_like_a_fresh_start(
    box: NamespaceSandbox, fresh_box: NamespaceSandbox, name: str
) -> None:
    argv = [*START, "-c", PROGRAMS[name], "one", "-2"]
    env = {**WARM_ENV, "A": "b c", "E": ""}
    got = [
        await each.run(argv, env=env, stdin=b"in put\n", cwd="/tmp") for each in (box, fresh_box)
    ]
    warm, fresh = [
        (r.status, r.exit_code, r.signal, r.stdout.decode(), r.stderr.decode()) for r in got
    ]
    if name == "identity":
        ours, theirs = (json.loads(text[3]) for text in (warm, fresh))
        assert ours == theirs
    else:
        assert warm == fresh


async def test_a_script_is_run_like_a_fresh_start(
    box: NamespaceSandbox, fresh_box: NamespaceSandbox
) -> None:
    program = b"import sys\nprint(__file__, sys.argv, __name__)\ndef f(): raise ValueError\nf()\n"
    results = []
    for each in (box, fresh_box):
        await each.write("dir/x.py", program)
        for name in ("dir/x.py", "/work/dir/x.py", "missing.py"):
            r = await each.run([*START, name, "a"], env=WARM_ENV)
            results.append((r.exit_code, r.stdout, r.stderr))
    assert results[:3] == results[3:]


async def is_fork(box: NamespaceSandbox) -> bool:
    """A fork's parent is outside the box's pid namespace."""
    result = await box.run([*START, "-c", "import posix; print(posix.getppid())"], env=WARM_ENV)
    return result.stdout == b"0\n"


async def test_forks_are_what_is_tested_here(
    box: NamespaceSandbox, fresh_box: NamespaceSandbox
) -> None:
    assert await is_fork(box)
    assert not await is_fork(fresh_box)


async def test_a_fork_holds_no_right_and_nothing_of_the_host(box: NamespaceSandbox) -> None:
    task = asyncio.create_task(
        box.run([*START, "-c", "import time; time.sleep(60)"], env=WARM_ENV, timeout_s=20)
    )
    await asyncio.sleep(0.5)
    [pid] = [
        pid
        for pid in processes_of_uid(box.host_uid)
        if Path(f"/proc/{pid}/comm").read_text() == "python3\n"
    ]
    status = status_of(pid)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert status[name] == "0" * 16
    assert status["Uid"].split() == [str(box.host_uid)] * 4
    assert status["Gid"].split() == [str(box.host_uid)] * 4
    assert (status["Groups"], status["NoNewPrivs"], status["Seccomp_filters"]) == ("", "1", "2")
    for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts"):
        theirs = Path(f"/proc/{pid}/ns/{name}").readlink()
        assert theirs == Path(f"/proc/{box.host_pid}/ns/{name}").readlink(), name
    assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]
    groups = Path(f"/proc/{pid}/cgroup").read_text()
    init_groups = Path(f"/proc/{box.host_pid}/cgroup").read_text()
    assert groups == init_groups
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(processes_of_uid(box.host_uid)) == OWN_PROCESSES


async def test_at_a_timeout_a_fork_and_all_that_it_started_is_dead(box: NamespaceSandbox) -> None:
    code = """
import os, time
print("started", flush=True)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: time.sleep(1)
        os._exit(0)
while True: time.sleep(1)
"""
    started_s = time.monotonic()
    result = await box.run([*START, "-c", code], env=WARM_ENV, timeout_s=0.5)
    assert time.monotonic() - started_s < 2
    assert (result.status, result.stdout) == (ExecStatus.TIMEOUT, b"started\n")
    assert len(processes_of_uid(box.host_uid)) == OWN_PROCESSES
    assert await is_fork(box)


async def test_a_box_with_company_starts_interpreters_afresh_and_kills_exactly(
    box: NamespaceSandbox,
) -> None:
    code = "import os, time\nif os.fork() == 0: time.sleep(62)\ntime.sleep(62)"
    fork = asyncio.create_task(box.run([*START, "-c", code], env=WARM_ENV, timeout_s=1.0))
    await asyncio.sleep(0.3)
    assert not await is_fork(box)
    neighbour = asyncio.create_task(box.run(["sh", "-c", "sleep 1.2; echo done"]))
    assert (await fork).status is ExecStatus.TIMEOUT
    assert (await neighbour).stdout == b"done\n"
    assert len(processes_of_uid(box.host_uid)) == OWN_PROCESSES
    assert (await box.run(["sh", "-c", "sleep 61 >/dev/null 2>&1 &"])).ok
    assert not await is_fork(box)


async def test_limits_hold_for_forks(pool: NamespacePool) -> None:
    limits = Limits(memory_bytes=64 << 20, pids=8, open_files=32)

    async def run(code: str, timeout_s: float = 10):  # type: ignore[no-untyped-def]
        async with pool.acquire(image="host", limits=limits, owner="test") as box:
            assert isinstance(box, NamespaceSandbox)
            assert await is_fork(box)
            return await box.run([*START, "-c", code], env=WARM_ENV, timeout_s=timeout_s)

    assert (await run("x = b'x' * (200 << 20)")).status is ExecStatus.OOM
    files = "files = []\nwhile True: files.append(open('/dev/null'))"
    assert b"Too many open files" in (await run(files)).stderr
    forks = "import os, time\nwhile True:\n  if os.fork() == 0: time.sleep(9)"
    result = await run(forks)
    assert b"BlockingIOError" in result.stderr
    assert "pids" in result.limits_hit


async def test_a_dead_zygote_is_the_hosts_fault_and_replaced(pool: NamespacePool) -> None:
    assert pool._host is not None
    assert pool._host.zygotes is not None
    [zygote] = pool._host.zygotes._zygotes.values()
    async with a_box(pool) as box:
        task = asyncio.create_task(
            box.run([*START, "-c", "import time; time.sleep(60)"], env=WARM_ENV)
        )
        await asyncio.sleep(0.3)
        os.kill(zygote.pid, signal.SIGKILL)
        with pytest.raises(SandboxLost) as lost:
            await task
        assert "interpreter" in lost.value.host_evidence
    async with a_box(pool) as box:
        assert (await box.run([*START, "-c", "0"], env=WARM_ENV)).ok
    await warm_interpreter(pool, START)
    async with a_box(pool) as box:
        assert await is_fork(box)


async def test_warm_imports_are_held_by_programs_that_name_their_trigger_alone() -> None:
    stdlib = f"/opt/trialyard/python/lib/python{sys.version_info.major}.{sys.version_info.minor}"
    warm = WarmImport(trigger="TRIGGER", modules=("json", "random"), directory=stdlib)
    pool = namespace_pool(warm_imports=[warm])
    code = "import sys; print('json' in sys.modules, stdlib in sys.path)".replace("stdlib", "'/x'")
    named = [*START, "-c", f"{code}; import random; print(random.random())", "TRIGGER"]
    await warm_interpreter(pool, START)
    for expected in (b"False", b"True", b"True"):
        async with a_box(pool) as box:
            argv = named if expected == b"True" else [*START, "-c", code]
            result = await box.run(argv, env=WARM_ENV)
            while result.stdout.split()[0] != expected:  # its interpreter is coming up
                await asyncio.sleep(0.05)
                result = await box.run(argv, env=WARM_ENV)
            assert result.stdout.split()[1] == b"False"
    async with a_box(pool) as box:
        numbers = {(await box.run(named, env=WARM_ENV)).stdout for _ in range(3)}
        assert len(numbers) == 3, "forks must not share the state of random"
    await pool.close()


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        ([*START, "-c", "0"], {}),
        ([*START, "-c", "0"], {"PYTHONHASHSEED": "random"}),
        ([*START, "-c", "0"], {"PYTHONHASHSEED": "0", "PYTHONPATH": "/work"}),
        ([*START, "-c", "0"], {"PYTHONHASHSEED": "0", "LD_PRELOAD": "x"}),
        ([PYTHON, "-I", "-c", "0"], {"PYTHONHASHSEED": "0"}),
        ([PYTHON, "x.py"], {"PYTHONHASHSEED": "0"}),
        ([PYTHON, "-s", "x.py"], {"PYTHONHASHSEED": "0"}),
        ([*START, "-m", "x"], {"PYTHONHASHSEED": "0"}),
        ([*START], {"PYTHONHASHSEED": "0"}),
        (["python3", "-P", "-s", "-c", "0"], {"PYTHONHASHSEED": "0"}),
    ],
)
def test_other_commands_are_left_alone(argv: list[str], env: dict[str, str]) -> None:
    assert start_kind(argv, env) is None


def test_what_an_interpreter_reads_at_start_makes_its_kind() -> None:
    env = {"PYTHONHASHSEED": "0", "HOME": "/tmp"}
    kind = start_kind([*START, "-c", "0"], env)
    assert kind == start_kind([*START, "-c", "1", "x"], {**env, "HOME": "/x", "A": "b"})
    for other in ({"PYTHONHASHSEED": "1"}, {"LANG": "C"}, {"LC_ALL": "C"}, {"TZ": "UTC"}):
        assert start_kind([*START, "-c", "0"], {**env, **other}) not in (kind, None)
    assert start_kind([PYTHON, "-s", "-c", "0"], env) not in (kind, None)
