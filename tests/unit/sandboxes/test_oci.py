"""Boxes that an OCI runtime sets up: which runtimes are fit, and what they leave (nothing)."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boxes import (
    a_box,
    all_processes,
    backend_of,
    child_processes,
    groups_of,
    namespace_pool,
    status_of,
)
from trialyard.core.errors import SandboxLost, SandboxUnavailable
from trialyard.core.image import Image
from trialyard.core.sandbox import ExecStatus, Limits
from trialyard.sandboxes import oci
from trialyard.sandboxes.native import native_program
from trialyard.sandboxes.oci import SETUP_UID_OFFSET, OciBackend, OciRuntime, find_runtime
from trialyard.sandboxes.oci_config import seccomp_profile
from trialyard.sandboxes.owner import MAX_BLOCKS, UID_BASE, UIDS_PER_BLOCK
from trialyard.sandboxes.pool import NamespacePool
from trialyard.sandboxes.syscalls import ALLOWED, REFUSED


@pytest.fixture
def backend() -> str:
    return "oci"


def a_runtime(directory: Path, name: str, says: str) -> str:
    path = directory / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("version", "fit"),
    [
        ("1.0.3", False),
        ("1.1.5+ds1", False),
        ("1.1.15", False),
        ("1.2.7", False),
        ("1.2.8", True),
        ("1.2.9", True),
        ("1.3.0", False),
        ("1.3.2", False),
        ("1.3.3", True),
        ("1.3.3-0ubuntu1", True),
        ("1.4.0-rc.1", False),
        ("1.4.0-rc.2", False),
        ("1.4.0-rc.3", True),
        ("1.4.0", True),
        ("2.0.0", True),
        ("unknown", False),
    ],
)
def test_a_runc_with_known_escapes_is_refused(tmp_path: Path, version: str, fit: bool) -> None:
    runtime = a_runtime(tmp_path, "docker-runc", f"runc version {version}\nspec: 1.2.0")
    if fit:
        assert OciBackend(runtime).runtime.version == version
        return
    with pytest.raises(SandboxUnavailable, match="allow_vulnerable_runtime"):
        OciBackend(runtime)
    assert OciBackend(runtime, allow_vulnerable_runtime=True).runtime.verdict


def test_a_refusal_names_what_the_version_lacks(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable) as refused:
        OciBackend(a_runtime(tmp_path, "runc", "runc version 1.1.5"))
    for word in ("CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881", "1.2.8", "1.3.3"):
        assert word in str(refused.value)


def test_other_runtimes_are_known_by_what_they_say(tmp_path: Path) -> None:
    assert OciBackend(a_runtime(tmp_path, "x", "crun version 1.8.1\ncommit: 0")).runtime == (
        OciRuntime("crun", tmp_path / "x", "1.8.1", "")
    )
    with pytest.raises(SandboxUnavailable, match="control socket"):
        OciBackend(a_runtime(tmp_path, "y", "runsc version release-20250101.0\nspec: 1.1.0"))


@pytest.mark.parametrize("name", ["runsc", "/usr/bin/runsc", "kata-runtime", "kata-qemu"])
def test_a_kernel_of_its_own_is_refused_by_name(name: str) -> None:
    with pytest.raises(SandboxUnavailable, match="control socket"):
        OciBackend(name)


def test_a_missing_or_broken_runtime_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="'no-such-runtime' is missing; install it"):
        find_runtime("no-such-runtime")
    broken = tmp_path / "runc"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match="--version failed"):
        find_runtime(str(broken))


def test_the_uids_of_runtimes_are_nobody_elses() -> None:
    assert UID_BASE + MAX_BLOCKS * UIDS_PER_BLOCK <= UID_BASE + SETUP_UID_OFFSET


def test_the_profile_holds_the_same_calls_as_our_own_filter() -> None:
    entries = seccomp_profile()["syscalls"]
    plain = {
        action: {name for entry in entries if entry["action"] == action and "args" not in entry
                 for name in entry["names"]}
        for action in ("SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO")
    }  # fmt: skip
    assert plain["SCMP_ACT_ALLOW"] == {*ALLOWED, "cachestat", "fchmodat2"}
    assert plain["SCMP_ACT_ERRNO"] == {*REFUSED} - {"personality"}
    conditional = {name for entry in entries if "args" in entry for name in entry["names"]}
    assert conditional == {"socket", "clone", "ioctl", "personality"}
    for entry in entries:
        indexes = [argument["index"] for argument in entry.get("args", [])]
        assert len(indexes) == len(set(indexes))  # runtimes would read "or"


async def test_the_runtime_leaves_a_parent_without_any_right(pool: NamespacePool) -> None:
    async with a_box(pool) as box:
        parent = int(status_of(box.host_pid)["PPid"])
        assert parent in child_processes()
        status = status_of(parent)
        assert status["Uid"].split() == [str(box.host_uid + SETUP_UID_OFFSET)] * 4
        assert status["CapEff"] == "0" * 16
        assert all_processes(box.host_uid) == [box.host_pid, parent]


@pytest.mark.parametrize("victim", ["init", "launcher"])
async def test_a_box_killed_from_the_host_is_lost_with_evidence(
    pool: NamespacePool, victim: str
) -> None:
    async with a_box(pool) as box:
        uid, pid = box.host_uid, box.host_pid
        os.kill(pid if victim == "init" else int(status_of(pid)["PPid"]), signal.SIGKILL)
        with pytest.raises(SandboxLost) as lost:
            await box.run(["sleep", "60"])
        assert "outside" in lost.value.host_evidence
        await box.close()  # a killed launcher's PID 1 needs a moment to follow it
        assert all_processes(uid) == []


async def test_running_out_of_memory_is_known_although_the_runtime_is_gone(
    pool: NamespacePool,
) -> None:
    limits = Limits(memory_bytes=32 << 20)
    async with pool.acquire(image="host", limits=limits, owner="test") as box:
        result = await box.run(["sh", "-c", "tail /dev/zero; echo survived"])
        assert result.status is ExecStatus.OOM
        assert result.limits_hit == {"memory"}
        assert result.usage.memory_peak_bytes <= limits.memory_bytes


async def test_the_runtime_itself_does_not_count(pool: NamespacePool) -> None:
    """It has more threads and memory than the smallest box may have."""
    limits = Limits(memory_bytes=16 << 20, pids=4)
    async with pool.acquire(image="host", limits=limits, owner="test") as box:
        result = await box.run(["true"])
        assert result.ok
        assert result.usage.memory_peak_bytes < 8 << 20
        assert result.usage.pids_peak <= 3
        many = await box.run(["sh", "-c", "for i in 1 2 3 4 5 6; do sleep 1 & done; wait"])
        assert "pids" in many.limits_hit


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """Where everybody may execute what lies there."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_a_runtime_that_fails_is_quoted_and_leaves_nothing(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = '#!/bin/sh\n[ "$1" = --version ] && echo "runc version 1.4.0" && exit\n'
    runtime = public_directory / "runc"
    runtime.write_text(script + 'echo "no luck today" >&2; exit 1\n')
    runtime.chmod(0o755)
    monkeypatch.setattr("tests.boxes.backend_of", lambda _: OciBackend(str(runtime)))
    pool = namespace_pool()
    with pytest.raises(SandboxUnavailable, match="no luck today"):
        async with a_box(pool):
            pass
    assert pool._host is not None
    owner = pool._host.owner.name
    for group in groups_of(owner):
        assert [entry for entry in group.iterdir() if entry.is_dir()] == []
    await pool.close()
    assert pool.counters()["leaked"] == 0


def a_layer(parent: Path) -> Path:
    """An image that a static program can run in."""
    parent.chmod(0o755)
    root = parent / "image"
    for name in ("usr", "lib64", "proc", "dev", "etc", "data"):
        (root / name).mkdir(parents=True)
    (root / "data/x").write_text("from the image")
    return root


async def test_an_image_of_layers_works_and_stays_as_it_is(tmp_path: Path) -> None:
    layer = a_layer(tmp_path)
    image = Image("layers", "1", (str(layer),))
    pool = NamespacePool(
        {"layers": image}, layers={"/bin/box": native_program()}, backend=backend_of("oci")
    )
    async with pool.acquire(image="layers", limits=Limits(), owner="test") as box:
        assert (await box.run(["/bin/box", "version"])).ok
        assert await box.read("/data/x") == b"from the image"
        await box.write("/work/x", b"mine")
    await pool.close()
    assert {entry.name for entry in layer.iterdir()} == {
        "usr", "lib64", "proc", "dev", "etc", "data",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["proc", "dev"])
async def test_an_image_cannot_choose_where_the_runtime_mounts(tmp_path: Path, name: str) -> None:
    """A link in the place of a mount point: no box rather than one with a hole."""
    layer = a_layer(tmp_path)
    (layer / name).rmdir()
    (layer / name).symlink_to("/data")
    pool = NamespacePool(
        {"layers": Image("layers", "1", (str(layer),))},
        layers={"/bin/box": native_program()},
        backend=backend_of("oci"),
    )
    with pytest.raises(SandboxUnavailable):
        async with pool.acquire(image="layers", limits=Limits(), owner="test"):
            pass
    await pool.close()
    assert pool.counters()["leaked"] == 0
    assert [entry.name for entry in sorted((layer / "data").iterdir())] == ["x"]


BUSY_SUPERVISOR = """
import asyncio
from tests.boxes import namespace_pool
from trialyard.core.sandbox import Limits
async def use(pool):
    while True:
        async with pool.acquire(image="host", limits=Limits(), owner="t") as box:
            await box.run(["true"])
async def main():
    pool = namespace_pool(max_boxes=4, warm_per_kind=2, backend="oci")
    print(pool.supervisor, flush=True)
    await asyncio.gather(*(use(pool) for _ in range(2)))
asyncio.run(main())
"""


def test_killing_the_supervisor_at_any_moment_leaves_nothing() -> None:
    """Also while a runtime is at work."""
    owners = []
    for delay_s in (0.0, 0.01, 0.03, 0.06, 0.1, 0.15):
        supervisor = subprocess.Popen(
            [sys.executable, "-c", BUSY_SUPERVISOR], stdout=subprocess.PIPE, text=True
        )
        assert supervisor.stdout is not None
        owners.append(supervisor.stdout.readline().strip())
        time.sleep(delay_s)
        supervisor.kill()
        supervisor.wait()
        supervisor.stdout.close()
    deadline_s = time.monotonic() + 5
    for owner in owners:
        while groups_of(owner) or Path("/run/trialyard/owners", owner).exists():
            assert time.monotonic() < deadline_s, owner
            time.sleep(0.02)


def test_version_output_is_not_trusted_to_have_a_version() -> None:
    assert oci._identify("", "runc") == ("runc", "")
