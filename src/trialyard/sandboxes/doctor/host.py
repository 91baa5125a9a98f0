"""What the host itself must offer: programs, namespaces, control groups, mounts, swap."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trialyard.sandboxes.backend import find_bubblewrap
from trialyard.sandboxes.cgroups import CgroupParent
from trialyard.sandboxes.doctor.finding import Finding, attempt
from trialyard.sandboxes.hierarchies import CONTROLLERS, CORE, read_hierarchies
from trialyard.sandboxes.host import check_privilege
from trialyard.sandboxes.native import native_program
from trialyard.sandboxes.owner import UID_BASE
from trialyard.sandboxes.seccomp import seccomp_filters

_TIMEOUT_S = 10
_A_DIRECTORY_OF_THE_DISK = "/var/lib"
"""Where layers of images may lie."""


def programs() -> list[Finding]:
    """Without these nothing else can be tried."""
    return [
        attempt("privilege", _privilege),
        attempt("native program", lambda: str(native_program())),
        attempt("bubblewrap", _bubblewrap_version),
        attempt("seccomp", lambda: f"{sum(map(len, seccomp_filters())) // 8} instructions"),
    ]


def host_findings() -> list[Finding]:
    """What the kernel and its settings offer."""
    return [_user_namespaces(), _cgroups(), _overlay(), _mapped_owners(), _swap()]


def _bubblewrap_version() -> str:
    path = find_bubblewrap()
    done = subprocess.run(
        [path, "--help"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
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
    return "root, which a task's code never is"


def _user_namespaces() -> Finding:
    """As a nobody, because that is who starts bubblewrap."""
    name = "user namespaces"
    maximum = Path("/proc/sys/user/max_user_namespaces")
    with contextlib.suppress(OSError):
        if int(maximum.read_text()) == 0:
            return Finding(name, False, "switched off", f"sysctl -w user.{maximum.name}=65536")
    argv = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "true"]
    try:
        done = subprocess.run(
            argv, user=UID_BASE, group=UID_BASE, extra_groups=[], capture_output=True, text=True,
            timeout=_TIMEOUT_S, env={"PATH": "/usr/bin:/bin"}, cwd="/", check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name, False, f"could not be tried: {error}", "see the other findings")
    if done.returncode == 0:
        return Finding(name, True, "an unprivileged user can make them")
    return Finding(name, False, done.stderr.strip(), _user_namespace_cure())


def _user_namespace_cure() -> str:
    def setting(name: str) -> str:
        path = Path("/proc/sys/kernel", name)
        return path.read_text().strip() if path.exists() else ""

    if setting("apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor forbids them; allow them to bubblewrap alone: apt-get install "
            "apparmor-profiles && ln -s /usr/share/apparmor/extra-profiles/"
            "bwrap-userns-restrict /etc/apparmor.d/ && apparmor_parser -r "
            "/etc/apparmor.d/bwrap-userns-restrict (or, for every program: sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    if setting("unprivileged_userns_clone") == "0":
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    return (
        "in a container, start it with --privileged (its seccomp profile or masked /proc "
        "forbids them); on a host, build the kernel with CONFIG_USER_NS"
    )


def _cgroups() -> Finding:
    hierarchies = read_hierarchies()
    usable = [h for h in hierarchies if os.access(h.root, os.W_OK)]
    have = {name: h.version for h in usable for name in h.controllers if name != CORE}
    missing = [name for name in CONTROLLERS if name not in have]
    listed = ", ".join(f"{name} v{version}" for name, version in sorted(have.items()))
    if missing:
        return Finding(
            "cgroups", False,
            f"no writable controller {', '.join(missing)} (have: {listed or 'none'})",
            "run as root on a host with cgroups mounted; in a container, start it with "
            "--privileged --cgroupns=private (or delegate a subtree: systemd Delegate=yes)",
        )  # fmt: skip
    return Finding("cgroups", True, listed)


def _launch(*steps: str) -> str:
    """Run steps of the launcher in a mount namespace of its own; what went wrong, or nothing."""
    with tempfile.TemporaryDirectory() as directory:
        argv = [str(native_program()), "launch", "--uid", str(UID_BASE)]
        argv += ["--tmpfs", directory, str(1 << 20), "64", *steps, "--", "/bin/true"]
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
            )
        except subprocess.SubprocessError as error:
            return str(error)
    return done.stderr.strip() if done.returncode else ""


def _overlay() -> Finding:
    problem = _launch("--overlay", _A_DIRECTORY_OF_THE_DISK)
    if not problem:
        return Finding("overlayfs", True, "works", required=False)
    return Finding(
        "overlayfs", False, f"only the image `host` can be used: {problem[:200]}",
        "modprobe overlay", required=False,
    )  # fmt: skip


def _mapped_owners() -> Finding:
    """Layers of an image seen with other owners, for boxes with a root inside."""
    steps: Sequence[str] = ("--map", "0:+0:65536", "--overlay", _A_DIRECTORY_OF_THE_DISK)
    problem = _launch(*steps)
    if not problem:
        return Finding("idmapped mounts", True, "work below overlayfs", required=False)
    return Finding(
        "idmapped mounts", False, f"no root inside on images with layers: {problem[:200]}",
        "Linux 6.1 or newer with the images on ext4, XFS or Btrfs", required=False,
    )  # fmt: skip


def _swap() -> Finding:
    lines = Path("/proc/swaps").read_text().splitlines()[1:]
    if not lines:
        return Finding("swap", True, "none", required=False)
    if _swap_is_limited():
        return Finding(
            "swap", True, "in use on this host; boxes are kept out of it", required=False
        )
    return Finding(
        "swap", False, "in use, and the kernel cannot keep boxes out of it",
        "swapoff -a, or boot with swapaccount=1", required=False,
    )  # fmt: skip


def _swap_is_limited() -> bool:
    parent = CgroupParent(read_hierarchies(), f"doctor-{os.getpid()}")
    try:
        return parent.limits_swap
    finally:
        parent.remove()
