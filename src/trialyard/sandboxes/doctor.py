"""What this host can do for sandboxes, and the exact cure for what it cannot.

Each finding is tried, not guessed; the last one starts a real box and looks at it from
inside. Only when every required finding holds are boxes safe here.
"""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trialyard.core.errors import TrialyardError
from trialyard.core.image import Image
from trialyard.core.sandbox import Limits
from trialyard.sandboxes.backend import find_bubblewrap
from trialyard.sandboxes.cgroups import CONTROLLERS, read_hierarchies
from trialyard.sandboxes.host import (
    RUNTIME_DIRECTORY,
    SandboxHost,
    check_privilege,
)
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.native import native_program
from trialyard.sandboxes.owner import UID_BASE
from trialyard.sandboxes.seccomp import seccomp_filters

_MOUNT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried. `cure` says what to do when it is not ok."""

    name: str
    ok: bool
    detail: str
    cure: str = ""
    required: bool = True


async def examine() -> list[Finding]:
    """Try everything that boxes need on this host."""
    findings = [
        _attempt("native program", lambda: str(native_program())),
        _attempt("bubblewrap", _bubblewrap_version),
        _attempt("privilege", _privilege),
        _attempt("seccomp", lambda: f"{sum(map(len, seccomp_filters())) // 8} instructions"),
        _user_namespaces(),
        _cgroups(),
        _overlay(),
        _swap(),
    ]
    if all(finding.ok for finding in findings if finding.required):
        findings.append(await _start_a_box())
    return findings


def _attempt(name: str, action: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, action())
    except (TrialyardError, OSError, subprocess.SubprocessError) as error:
        return Finding(name, False, "not usable", cure=str(error))


def _bubblewrap_version() -> str:
    path = find_bubblewrap()
    done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=10, check=True)
    missing = [
        option
        for option in ("--disable-userns", "--add-seccomp-fd", "--as-pid-1", "--die-with-parent")
        if option not in done.stdout + done.stderr
    ]
    if missing:
        raise OSError(f"{path} lacks {', '.join(missing)}; install bubblewrap 0.8 or newer")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return f"{version.stdout.strip()} at {path}"


def _privilege() -> str:
    check_privilege()
    return f"root; boxes get host uids from {UID_BASE}"


def _user_namespaces() -> Finding:
    """As a nobody, because that is who starts bubblewrap."""
    name = "user namespaces"
    maximum = Path("/proc/sys/user/max_user_namespaces")
    restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    with contextlib.suppress(OSError):
        if int(maximum.read_text()) == 0:
            return Finding(name, False, "switched off", cure=f"echo 10000 > {maximum}")
    argv = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "true"]
    try:
        done = subprocess.run(
            argv, user=UID_BASE, group=UID_BASE, extra_groups=[], capture_output=True, text=True,
            timeout=10, env={"PATH": "/usr/bin:/bin"}, cwd="/", check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name, False, f"could not be tried: {error}", cure="see the other findings")
    if done.returncode == 0:
        return Finding(name, True, "an unprivileged user can make them")
    cure = "sysctl -w kernel.unprivileged_userns_clone=1"
    if restricted.exists() and restricted.read_text().strip() == "1":
        cure = (
            "allow them to bubblewrap alone: install AppArmor's profile bwrap-userns-restrict "
            "(Ubuntu 24.04: package apparmor-profiles, then apparmor_parser -r its file)"
        )
    return Finding(name, False, done.stderr.strip(), cure=cure)


def _cgroups() -> Finding:
    hierarchies = read_hierarchies()
    usable = [h for h in hierarchies if os.access(h.root, os.W_OK)]
    have = {name: h.version for h in usable for name in h.controllers}
    missing = [name for name in CONTROLLERS if name not in have]
    listed = ", ".join(f"{name} v{version}" for name, version in sorted(have.items()))
    if missing:
        return Finding(
            "cgroups",
            False,
            f"no writable controller {', '.join(missing)} (have: {listed or 'none'})",
            cure="run as root on a host with cgroups mounted; in a container, start it with "
            "--privileged --cgroupns=private (or delegate a subtree: systemd Delegate=yes)",
        )
    return Finding("cgroups", True, listed)


def _overlay() -> Finding:
    """Needed only by images with a writable system; tried in a mount namespace of its own."""
    script = (
        "d=$(mktemp -d) && mount -t tmpfs none $d && cd $d && mkdir a b c d && "
        "mount -t overlay none -o lowerdir=a,upperdir=b,workdir=c d"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False,
        timeout=_MOUNT_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode == 0:
        return Finding("overlayfs", True, "works", required=False)
    return Finding(
        "overlayfs", False, done.stderr.strip()[:200], cure="modprobe overlay", required=False
    )


def _swap() -> Finding:
    lines = Path("/proc/swaps").read_text().splitlines()[1:]
    if not lines:
        return Finding("swap", True, "none", required=False)
    return Finding(
        "swap",
        True,
        "in use on this host; boxes are kept out of it by their memory limit",
        required=False,
    )


async def _start_a_box() -> Finding:
    name = "a box"
    layers: dict[str, Path] = {}
    try:
        host = SandboxHost(layers=layers, runtime_directory=RUNTIME_DIRECTORY)
    except TrialyardError as error:
        return Finding(name, False, "cannot be prepared", cure=str(error))
    try:
        started_s = asyncio.get_running_loop().time()
        box = await NamespaceSandbox.start(host, Image("host", "", (), on_host=True), Limits())
        start_ms = (asyncio.get_running_loop().time() - started_s) * 1000
        try:
            result = await box.run(["cat", "/proc/self/status"], timeout_s=20)
        finally:
            await box.close()
    except TrialyardError as error:
        return Finding(name, False, "does not start", cure=str(error))
    finally:
        host.close()
    text = result.stdout.decode("utf-8", "replace")
    wanted = ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1")
    missing = [line for line in (*wanted, "Seccomp:\t2") if line not in text]
    if not result.ok or missing:
        return Finding(
            name, False, f"is not confined: {', '.join(missing) or result.status}",
            cure="do not run boxes here; report this with the kernel's and bwrap's version",
        )  # fmt: skip
    return Finding(
        name, True, f"started in {start_ms:.1f} ms: no capabilities, seccomp, uid {box.host_uid}"
    )
