"""Real boxes for tests: a pool on this machine, and what to look for on the host."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.timing import scaled
from trialyard.core.sandbox import BoxUser, Limits
from trialyard.images.host import HOST, host_image
from trialyard.sandboxes import box_commands, box_process, command, namespace, reclaim, zygote
from trialyard.sandboxes.backend import Backend
from trialyard.sandboxes.hierarchies import PARENT, read_hierarchies
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.oci import SETUP_UID_OFFSET, OciBackend
from trialyard.sandboxes.owner import IDS_PER_RANGE, RANGE_BASE
from trialyard.sandboxes.pool import NamespacePool

_PATIENCE = (
    (namespace, "START_TIMEOUT_S _REMOVE_TIMEOUT_S"),
    (box_commands, "_SEND_TIMEOUT_S"),
    (box_process, "_WAIT_S"),
    (command, "KILL_TIMEOUT_S SIGKILL_GRACE_S"),
    (reclaim, "_RECLAIM_TIMEOUT_S"),
    (zygote, "_STOP_TIMEOUT_S"),
)
for module, names in _PATIENCE:  # an emulated machine is slow in the supervisor too
    for name in names.split():
        setattr(module, name, scaled(getattr(module, name)))

PYTHON = "/opt/trialyard/python/bin/python3"
OCI_RUNTIME = os.environ.get("TRIALYARD_TEST_OCI_RUNTIME", "runc")
BACKENDS = ("namespace", "oci")
WARM_ENV = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
"""With a fixed hash seed a run may be a fork of a warm interpreter."""


def backend_of(name: str) -> Backend | None:
    """What sets boxes up, by name. The runtime may be an old one: the tests look for holes."""
    if name == "namespace":
        return None
    assert name == "oci", name
    return OciBackend(OCI_RUNTIME, allow_vulnerable_runtime=True)


def namespace_pool(
    *, max_boxes: int = 4, warm_per_kind: int = 0, backend: str = "namespace", **options: object
) -> NamespacePool:
    """A pool of the host image; close it at the end of the test."""
    return NamespacePool(
        {HOST: host_image()},
        max_boxes=max_boxes,
        warm_per_kind=warm_per_kind,
        backend=backend_of(backend),
        **options,  # type: ignore[arg-type]
    )


@contextlib.asynccontextmanager
async def a_box(
    pool: NamespacePool, *, user: BoxUser = "user", image: str = HOST
) -> AsyncIterator[NamespaceSandbox]:
    """A box with the default limits, as what it is."""
    async with pool.acquire(image=image, limits=Limits(), owner="test", user=user) as box:
        assert isinstance(box, NamespaceSandbox)
        yield box


async def warm_interpreter(pool: NamespacePool, argv: Sequence[str]) -> None:
    """Wait until commands that start like `argv` are forks of a warm interpreter."""
    async with a_box(pool) as box:
        env = {**WARM_ENV, "LANG": "C.UTF-8"}
        await box.run([*argv, "-c", ""], env=env)
        assert pool._host is not None
        assert pool._host.zygotes is not None
        for _ in range(int(scaled(10) / 0.01)):
            if pool._host.zygotes.find([*argv, "-c", ""], env) is not None:
                return
            await asyncio.sleep(0.01)
    raise AssertionError("the interpreter does not get warm")


def status_of(pid: int) -> dict[str, str]:
    """/proc/PID/status as the host sees it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def processes_of_uid(uid: int) -> list[int]:
    """Host pids of all processes of one uid."""
    return processes_of_uids(range(uid, uid + 1))


def processes_of_uids(uids: range) -> list[int]:
    """Host pids of all processes of some uids."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            status = status_of(int(entry)) if entry.isdigit() else {}
            uid = status.get("Uid", "").split()[:1]
            if uid and int(uid[0]) in uids and status["State"][0] != "Z":
                found.append(int(entry))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def processes_of_owner(owner: str) -> list[int]:
    """Host pids of the living processes in the cgroups of one owner's boxes."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            groups = Path("/proc", entry, "cgroup").read_text() if entry.isdigit() else ""
            if f"/{owner}" in groups and status_of(int(entry))["State"][0] != "Z":
                found.append(int(entry))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def all_processes(uid: int) -> list[int]:
    """Those of a box and of the program that set it up."""
    of_range = range(uid, uid + IDS_PER_RANGE) if uid >= RANGE_BASE else range(uid, uid + 1)
    return processes_of_uids(of_range) + processes_of_uid(uid + SETUP_UID_OFFSET)


def groups_of(owner: str) -> list[Path]:
    """The cgroup directories that an owner has on this host."""
    roots = [hierarchy.root / PARENT for hierarchy in read_hierarchies()]
    return [root / owner for root in roots if (root / owner).is_dir()]


def child_processes() -> list[int]:
    """Pids of the processes that this one has started and not reaped."""
    return [
        int(pid)
        for pid in Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    ]
