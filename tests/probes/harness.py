"""Runs one hostile program in a box and checks all that its expect.json asks for.

Host facts are planted first (a secret file, a sentinel process, a listener, a neighbour's
box) and looked at afterwards. An invariant whose name is not known fails: nothing is skipped.
"""

# ruff: noqa: ASYNC240 - the host is looked at directly
import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.boxes import (
    PYTHON,
    WARM_ENV,
    all_processes,
    groups_of,
    namespace_pool,
    processes_of_uids,
    warm_interpreter,
)
from tests.probes.planted import Planted, plant
from tests.timing import scaled
from trialyard.core.errors import FileAccessError
from trialyard.core.sandbox import BoxUser, ExecResult, ExecStatus, Limits
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool

ROOT = Path(__file__).parent
MIB = 1 << 20
WARM_START = [PYTHON, "-P", "-s", "-S"]
PIPE_SLACK_MIB = 48
"""The supervisor may grow by kept output and pools of freed memory, not by a flood."""


@dataclass
class Run:
    """One probe with what was seen."""

    probe: Path
    expect: dict[str, Any]
    planted: Planted
    pool: NamespacePool
    mounts: str
    warm: bool
    user: BoxUser
    rss_before_bytes: int
    results: list[ExecResult] = field(default_factory=list)
    uids: set[int] = field(default_factory=set)
    downloads: list[dict[str, bytes]] = field(default_factory=list)
    cleanup_s: float = 0.0
    groups_seen: set[str] = field(default_factory=set)

    @property
    def output(self) -> str:
        return "".join(
            (result.stdout + result.stderr).decode("utf-8", "replace") for result in self.results
        )


def probes() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("*/expect.json"))


def limits_of(expect: dict[str, Any]) -> Limits:
    given = expect["limits"]
    return Limits(
        cpus=given["cpu"],
        memory_bytes=given["memory_mb"] * MIB,
        pids=given["pids"],
        disk_bytes=given["disk_mb"] * MIB,
        inodes=given["inodes"],
        output_bytes=given["output_bytes"],
        open_files=given["nofile"],
    )


async def run_probe(
    probe: Path,
    tmp_path: Path,
    *,
    warm: bool = False,
    backend: str = "namespace",
    user: BoxUser = "user",
) -> None:
    """Raises AssertionError with everything that was not as it should be.

    `warm`: the probe is a fork of a warm interpreter, not a fresh start.
    """
    expect = json.loads((probe / "expect.json").read_text())
    if expect.get("harness_action") == "sigkill_supervisor_after_1s":
        check_supervisor_killed(probe, expect, backend, user)
        return
    mounts = Path("/proc/self/mounts").read_text()
    pool = namespace_pool(max_boxes=4, warm_per_kind=1, backend=backend)
    try:
        if warm:
            await warm_interpreter(pool, WARM_START)
        async with plant(pool, tmp_path) as planted:
            run = Run(probe, expect, planted, pool, mounts, warm, user, own_rss_bytes())
            for phase in expect.get("phases", [1]):
                await run_phase(run, phase)
            check_outcome(run)
            check_while_pool_lives(run)
    finally:
        await pool.close()
    check_after_pool(run)


async def run_phase(run: Run, phase: int) -> None:
    expect, limits = run.expect, limits_of(run.expect)
    entry = expect["entry"]
    lease = run.pool.acquire(image="host", limits=limits, owner=f"phase {phase}", user=run.user)
    async with lease as box:
        assert isinstance(box, NamespaceSandbox)
        run.uids.add(box.host_uid)
        await box.write(f"/work/{entry}", (run.probe / entry).read_bytes(), mode=0o755)
        start = ["sh"] if entry.endswith(".sh") else WARM_START if run.warm else [PYTHON]
        started_s = time.monotonic()
        result = await box.run(
            [*start, entry],
            env=environment(run, phase) | (WARM_ENV if run.warm else {}),
            stdin=b"x" * expect.get("stdin_bytes", 0),
            timeout_s=scaled(expect["limits"]["wall_s"]),
        )
        wall_s = time.monotonic() - started_s
        run.results.append(result)
        assert wall_s <= scaled(expect["outcome"]["max_wall_s"]), f"took {wall_s:.1f} s"
        if "pids_within_limit" in expect["host_invariants"]:
            assert len(processes_of_uids(box.host_uids)) <= limits.pids + 1
        if "disk_within_limit" in expect["host_invariants"] and box.alive:
            used = os.statvfs(f"/proc/{box.host_pid}/root")
            assert (used.f_blocks - used.f_bfree) * used.f_frsize <= limits.disk_bytes
        if "download" in expect and box.alive:
            await check_download(run, box)
        ended_s = time.monotonic()
    while all_processes(box.host_uid):
        assert time.monotonic() - ended_s < scaled(5), "processes of the box live on"
        await asyncio.sleep(0.01)
    run.cleanup_s = time.monotonic() - ended_s


def environment(run: Run, phase: int) -> dict[str, str]:
    planted = run.planted
    return {
        "PROBE_OUT": "/out",
        "PROBE_TMP": "/tmp",
        "PROBE_CANARY_PATH": str(planted.canary),
        "PROBE_SENTINEL_PID": str(planted.sentinel.pid),
        "PROBE_SUPERVISOR_PID": str(os.getpid()),
        "PROBE_HOST_PORT": str(planted.port),
        "PROBE_ABSTRACT": planted.abstract,
        "PROBE_OTHER_UPPER": f"/proc/{planted.neighbour.host_pid}/root/work",
        "PROBE_PHASE": str(phase),
        "PATH": "/usr/local/bin:/usr/bin:/bin:/opt/trialyard/python/bin",
    }


# --- judging ------------------------------------------------------------------------------


def words_for(result: ExecResult) -> set[str]:
    """The words of expect.json that fit a result."""
    words = {
        ExecStatus.TIMEOUT: {"timeout", "killed"},
        ExecStatus.OOM: {"oom", "killed"},
        ExecStatus.OUTPUT_LIMIT: {"output_limit", "killed"},
        ExecStatus.SIGNALED: {"signal"},
        ExecStatus.CANCELLED: {"killed"},
    }.get(result.status, {"ok" if result.exit_code == 0 else "error"})
    if result.status is ExecStatus.EXITED:
        words |= {
            word
            for limit, word in (("disk", "disk_quota"), ("pids", "pids_limit"))
            if limit in result.limits_hit
        }
    return words


def check_outcome(run: Run) -> None:
    outcome = run.expect["outcome"]
    for result in run.results:
        assert words_for(result) & set(outcome["status_any_of"]), result
        if "exit_code" in run.expect:
            assert result.exit_code == run.expect["exit_code"]
    for pattern in run.expect["required_output_regex"]:
        assert re.search(pattern, run.output), (pattern, run.output[-2000:])
    planted = {"${HOST_SECRET}": run.planted.secret, "${OTHER_SECRET}": run.planted.other_secret}
    for pattern in [*run.expect["forbidden_output_regex"], "VERDICT ESCAPED", *planted]:
        pattern = planted.get(pattern, pattern)
        assert not re.search(pattern, run.output), (pattern, run.output[-2000:])
    prefix = run.expect.get("output_bytes_exact_hex_prefix")
    if prefix is not None:
        assert run.results[0].stdout.hex().startswith(prefix)


def own_rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def sysv_keys() -> set[str]:
    found = set()
    for name in ("shm", "sem", "msg"):
        lines = Path(f"/proc/sysvipc/{name}").read_text().splitlines()[1:]
        found |= {f"{name}:{int(line.split()[0]) & 0xFFFFFFFF:x}" for line in lines}
    return found


def check_while_pool_lives(run: Run) -> None:
    for name in run.expect["host_invariants"]:
        INVARIANTS[name](run)


def _canary_unchanged(run: Run) -> None:
    assert run.planted.canary.read_text() == run.planted.secret


def _sentinel_alive(run: Run) -> None:
    assert run.planted.sentinel.poll() is None


def _host_name_unchanged(run: Run) -> None:
    assert socket.gethostname() == run.planted.host_name


def _memory_within_limit(run: Run) -> None:
    limit = limits_of(run.expect).memory_bytes
    assert all(0 < result.usage.memory_peak_bytes <= limit for result in run.results)


def _own_memory_bounded(run: Run) -> None:
    assert own_rss_bytes() - run.rss_before_bytes < PIPE_SLACK_MIB * MIB


def _can_open_files(run: Run) -> None:
    for fd in [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]:
        os.close(fd)


def _cpu_within_quota(run: Run) -> None:
    cpus = limits_of(run.expect).cpus
    assert all(r.usage.cpu_s <= r.usage.wall_s * cpus * 1.2 + 0.2 for r in run.results)


def _no_sysv_ipc_left(run: Run) -> None:
    assert not any(key.endswith(":7731") for key in sysv_keys())


def _cleaned_up_soon(run: Run) -> None:
    assert run.cleanup_s < scaled(5)


def _no_setuid_file(run: Run) -> None:
    for path in run.planted.canary.parent.rglob("*"):
        assert not path.lstat().st_mode & 0o6000


def _checked_elsewhere(run: Run) -> None:
    """During the phase, or when the pool is closed."""


INVARIANTS: dict[str, Callable[[Run], None]] = {
    "host_canary_unchanged": _canary_unchanged,
    "sentinel_process_alive": _sentinel_alive,
    "host_name_unchanged": _host_name_unchanged,
    "memory_within_limit": _memory_within_limit,
    "supervisor_rss_bounded": _own_memory_bounded,
    "supervisor_can_open_files": _can_open_files,
    "cpu_within_quota": _cpu_within_quota,
    "no_sysv_ipc_left": _no_sysv_ipc_left,
    "cleanup_under_5s": _cleaned_up_soon,
    "no_host_setuid_root_file": _no_setuid_file,
    "no_process_left": _checked_elsewhere,
    "no_mount_left": _checked_elsewhere,
    "pids_within_limit": _checked_elsewhere,
    "disk_within_limit": _checked_elsewhere,
}


def check_after_pool(run: Run) -> None:
    assert Path("/proc/self/mounts").read_text() == run.mounts
    for uid in run.uids:
        assert all_processes(uid) == []
    counters = run.pool.counters()
    assert counters["leaked"] == 0
    assert counters["created"] == counters["destroyed"]


async def check_download(run: Run, box: NamespaceSandbox) -> None:
    """Copy /out as its expectations say, and look at what came."""
    wanted = run.expect["download"]
    started_s = time.monotonic()
    files, refused = {}, ""
    try:
        files = await box.download("/out", max_bytes=wanted.get("max_bytes", 64 * MIB))
    except FileAccessError as error:
        refused = str(error)
    assert not (refused and "must_contain" in wanted), refused
    if wanted.get("deep") == "refused_with_clear_error":
        assert "nested deeper" in refused
    assert time.monotonic() - started_s < scaled(wanted.get("max_s", 10))
    for name in wanted.get("must_contain", []):
        assert name in files
    secrets_of = {"${HOST_SECRET}": run.planted.secret, "${OTHER_SECRET}": run.planted.other_secret}
    for text in wanted.get("must_not_contain_content", []):
        text = secrets_of.get(text, text)
        assert not any(text.encode() in data for data in files.values()), text
    known = {
        "must_contain", "must_not_contain_content", "max_s", "max_bytes", "links", "specials",
        "deep", "modes", "decompress", "when",
    }  # fmt: skip
    assert set(wanted) <= known, set(wanted) - known
    assert sum(map(len, files.values())) <= wanted.get("max_bytes", 64 * MIB)


# --- the supervisor itself ----------------------------------------------------------------

_SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from tests.boxes import PYTHON, namespace_pool
from tests.probes.harness import limits_of
import json
async def main():
    probe = Path(sys.argv[1])
    expect = json.loads((probe / "expect.json").read_text())
    pool = namespace_pool(warm_per_kind=1, backend=sys.argv[2])
    limits, user = limits_of(expect), sys.argv[3]
    async with pool.acquire(image="host", limits=limits, owner="probe", user=user) as box:
        await box.write("/work/probe.py", (probe / "probe.py").read_bytes())
        print(box.host_uid, pool._host.owner.name, flush=True)
        def say(name, data): print(data.decode().strip(), flush=True)
        await box.run([PYTHON, "probe.py"], timeout_s=30, on_output=say)
asyncio.run(main())
"""


def check_supervisor_killed(
    probe: Path, expect: dict[str, Any], backend: str, user: BoxUser
) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    supervisor = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, str(probe), backend, user],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        uid_text, owner = supervisor.stdout.readline().split()
        uid = int(uid_text)
        assert supervisor.stdout.readline().strip() == "RUNNING"
        time.sleep(1)
        assert len(all_processes(uid)) >= 4
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
    deadline_s = time.monotonic() + scaled(2)
    while all_processes(uid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert all_processes(uid) == []
    while groups_of(owner):
        assert time.monotonic() < deadline_s, "cgroups are left"
        time.sleep(0.02)
    assert Path("/proc/self/mounts").read_text() == mounts
    assert expect["outcome"]["status_any_of"] == ["supervisor_killed"]
