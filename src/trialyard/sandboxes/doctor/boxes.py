"""Boxes of each backend, really started, with six hostile programs inside."""

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trialyard.core.errors import SandboxError, TrialyardError
from trialyard.core.image import Image
from trialyard.core.sandbox import BoxUser, Limits
from trialyard.sandboxes.backend import Backend, BubblewrapBackend
from trialyard.sandboxes.doctor.finding import Finding
from trialyard.sandboxes.doctor.probes import PROBES
from trialyard.sandboxes.host import PYTHON_LAYER, SandboxHost
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.network.listener import listen_inside
from trialyard.sandboxes.plan import ROOT_CAPABILITIES

LIMITS = Limits(memory_bytes=64 << 20, pids=16, disk_bytes=8 << 20, inodes=256, wall_s=60.0)
_PROBE_TIMEOUT_S = 10.0
_PYTHON = (f"{PYTHON_LAYER}/bin/python3", "-I", "-S", "-c")
_FILL_DISK = f"import os; os.posix_fallocate(os.open('x', 66), 0, {LIMITS.disk_bytes + 1})"
_DO_NOT_RUN = "do not run boxes here; report this with the versions of the kernel and the backend"


_ROOT_MASK = sum(1 << number for number in ROOT_CAPABILITIES.values())


@dataclass(frozen=True, slots=True)
class _Bait:
    """What is on the host and must stay out of reach."""

    secret_file: Path
    port: int
    socket_name: str

    def arguments(self, probe: str, user: BoxUser) -> list[str]:
        given = {
            "capabilities": [f"{_ROOT_MASK if user == 'root' else 0:x}"],
            "PID 1": [str(os.getpid())],
            "host files": [str(self.secret_file)],
            "network": [str(self.port), self.socket_name],
        }
        return given.get(probe, [])


@contextlib.contextmanager
def _bait() -> Iterator[_Bait]:
    name = f"trialyard-doctor-{secrets.token_hex(4)}"
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix,
    ):
        unix.bind("\0" + name)
        unix.listen()
        Path(directory).chmod(0o755)
        file = Path(directory, "secret")
        file.write_text(name)
        file.chmod(0o644)
        yield _Bait(file, tcp.getsockname()[1], name)


async def default_boxes() -> list[Finding]:
    """Boxes of the default backend: whether they hold, their disk and their network."""
    return await _boxes("boxes of namespaces", BubblewrapBackend(), is_default=True)


async def root_boxes() -> list[Finding]:
    """Boxes of the default backend with a root of their own inside."""
    backend = BubblewrapBackend()
    return await _boxes("boxes with root inside", backend, user="root", is_default=False)


async def oci_boxes(backend: Backend, name: str) -> list[Finding]:
    """Boxes that an OCI runtime sets up."""
    return await _boxes(f"boxes of {name}", backend, is_default=False)


async def _boxes(
    name: str, backend: Backend, *, user: BoxUser = "user", is_default: bool
) -> list[Finding]:
    try:
        host = SandboxHost(backend=backend, warm_interpreters=False)
    except TrialyardError as error:
        return [Finding(name, False, "cannot be prepared", str(error), is_default)]
    try:
        started_s = asyncio.get_running_loop().time()
        image = Image("host", "", (), on_host=True)
        box = await NamespaceSandbox.launch(host, image, LIMITS, user=user)
        start_ms = (asyncio.get_running_loop().time() - started_s) * 1000
        try:
            extra = [await _disk(box), await _network(box)] if is_default else []
            escaped = await _run_probes(box)
        finally:
            await box.close()
    except TrialyardError as error:
        return [Finding(name, False, "do not start", str(error), is_default)]
    finally:
        host.close()
    if escaped:
        return [
            Finding(name, False, f"not contained: {'; '.join(escaped)}", _DO_NOT_RUN, is_default)
        ]
    names = ", ".join(probe.name for probe in PROBES[1:])
    detail = f"start in {start_ms:.0f} ms; work, and contain {len(PROBES) - 1} probes: {names}"
    return [Finding(name, True, detail, required=is_default), *extra]


async def _run_probes(box: NamespaceSandbox) -> list[str]:
    """What did not go as it should."""
    escaped = []
    with _bait() as bait:
        for probe in PROBES:
            argv = [*_PYTHON, probe.source, *bait.arguments(probe.name, box.user)]
            try:
                result = await box.run(argv, timeout_s=_PROBE_TIMEOUT_S)
            except SandboxError as error:  # it did something to its PID 1
                escaped.append(f"{probe.name} ({error})")
                break
            if not probe.holds(result):
                said = (result.stdout + result.stderr)[-200:].decode("utf-8", "replace")
                escaped.append(f"{probe.name} ({result.status}: {' '.join(said.split())})")
    return escaped


async def _disk(box: NamespaceSandbox) -> Finding:
    result = await box.run([*_PYTHON, _FILL_DISK], timeout_s=_PROBE_TIMEOUT_S)
    if result.ok or b"No space left" not in result.stderr:
        return Finding("disk limit", False, "not enforced", _DO_NOT_RUN)
    return Finding(
        "disk limit", True, "a tmpfs of the box's own, bytes and inodes; counts as memory as well"
    )


async def _network(box: NamespaceSandbox) -> Finding:
    """A listener inside is what the allow-list's proxy and relays stand on."""
    pidfd = os.pidfd_open(box.host_pid)
    try:
        (await listen_inside(pidfd, 9)).close()
    except TrialyardError as error:
        cure = f"allow setns of network namespaces to this process ({error})"
        return Finding("network filter", False, "boxes have no network only", cure, required=False)
    finally:
        os.close(pidfd)
    return Finding("network filter", True, "a proxy can listen inside a box", required=False)
