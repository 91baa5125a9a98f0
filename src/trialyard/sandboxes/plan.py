"""The launch plan: which steps build the tree of one kind of box, and how bubblewrap starts.

A kind is (image, limits, workdir, user); its plan is computed once, and only the box's cgroups and
uid are put in at each start. The steps are those of native/launch.c.
"""

import math
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trialyard.core.errors import UserError
from trialyard.core.image import Image
from trialyard.core.sandbox import BoxUser, Limits
from trialyard.sandboxes.owner import IDS_PER_RANGE
from trialyard.sandboxes.protocol import FIRST_SECCOMP_FD
from trialyard.sandboxes.system_files import BOX_UID, HOME, ROOT_HOME

INIT_PATH = "/opt/trialyard/init"
ZYGOTE_PATH = "/opt/trialyard/zygote.so"
OUT = "/out"
OWN_INODES = 96
"""What the tree itself takes, so that `inodes` counts the box's own files."""
_SYSTEM = ("/usr", "/etc", "/dev", "/proc", "/sys", "/bin", "/sbin", "/lib", "/lib64", "/opt")
_USER_MAP = f"0:0:{BOX_UID},{BOX_UID}:+0:1"
"""Owners in image layers as host ids: the box's user is itself, whoever follows is nobody."""
ROOT_MAP = f"0:+0:{IDS_PER_RANGE}"
"""Root inside and everybody else of its box: the host ids from the box's first on."""
ROOT_CAPABILITIES: Mapping[str, int] = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "SETPCAP": 8, "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18, "AUDIT_WRITE": 29, "SETFCAP": 31,
}  # fmt: skip
"""With their numbers; over the box's own ids and namespaces alone. A default container has
these, and MKNOD and NET_RAW, which no box has."""
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
MASKED_PROC = ("keys", "interrupts", "cmdline")
"""World-readable and about the host; the other well-known ones only root may read."""
READ_ONLY_PROC = ("sys",)


@dataclass(frozen=True, slots=True)
class BoxParts:
    """Host paths that every box of one owner is made of."""

    program: Path
    mount_point: Path
    etc: Path
    dev: Path
    seccomp: tuple[Path, ...]
    layers: Mapping[str, Path]
    links: Mapping[str, str]
    """Path in the box -> target, e.g. where an interpreter was installed on the host."""


@dataclass(frozen=True, slots=True)
class BoxTree:
    """Where the changes of a box lie."""

    provided: frozenset[bytes]
    """Paths of the tree that every box of the image gets anew, and that no snapshot holds."""
    upper: Path | None
    """The writable layer in the launcher's mounts; None: the tree itself."""


class BoxPlan(Protocol):
    """The argv of the launcher but for what differs between two boxes of one kind."""

    @property
    def apart(self) -> bool:
        """Whether the program that sets the box up works in a cgroup beside the box's."""
        ...

    def argv(self, group_steps: Sequence[str], uid: int) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A box that bubblewrap sets up."""

    program: str
    steps: tuple[str, ...]
    apart: bool = False

    def argv(self, group_steps: Sequence[str], uid: int) -> list[str]:
        return [self.program, "launch", *group_steps, "--uid", str(uid), *self.steps]


def visible_cpus(limits: Limits) -> int:
    """How many cores programs are told of: what the box may use, rounded up."""
    return min(math.ceil(limits.cpus), os.cpu_count() or 1)


def check_workdir(workdir: str) -> str:
    """The normalised workdir. Raises `UserError` when it is not a place for work."""
    path = posixpath.normpath(workdir)
    if not path.startswith("/") or "\0" in path or path == "/":
        raise UserError(f"workdir {workdir!r}: must be an absolute path below /")
    if any(path == top or path.startswith(f"{top}/") for top in _SYSTEM):
        raise UserError(f"workdir {workdir!r}: lies in a read-only part of the system")
    return path


def plan_box(
    parts: BoxParts, bubblewrap: Path, image: Image, limits: Limits, workdir: str, user: BoxUser
) -> LaunchPlan:
    """The plan for one kind of box that bubblewrap sets up."""
    steps = (
        *("--nofile", str(limits.open_files)),
        *tree_steps(parts, image, limits, workdir, user),
        *[word for path in parts.seccomp for word in ("--open", str(path))],
        *(("--userns",) if user == "root" else ()),
        *("--", str(bubblewrap)),
        *(_root_inside(parts) if user == "root" else _ordinary_user()),
        *_bubblewrap(parts),
    )
    return LaunchPlan(str(parts.program), steps)


def box_tree(parts: BoxParts, image: Image) -> BoxTree:
    """What of the tree of an image's boxes is their own."""
    system = ("usr", *_MERGED, "etc") if image.on_host else ()
    paths = ("proc", "sys", "dev", INIT_PATH, *parts.layers, *parts.links, *system)
    return BoxTree(
        provided=frozenset(os.fsencode(path.lstrip("/")) for path in paths),
        upper=parts.mount_point / "upper" if image.lowers else None,
    )


def tree_steps(
    parts: BoxParts, image: Image, limits: Limits, workdir: str, user: BoxUser
) -> Iterator[str]:
    """The steps that build the tree of one kind of box."""
    if user == "root":
        yield from ("--map", ROOT_MAP, "--root")
    yield from ("--tmpfs", str(parts.mount_point))
    yield from (str(limits.disk_bytes), str(limits.inodes + OWN_INODES))
    if image.lowers:
        overlay = ("--overlay", ":".join(image.lowers))
        yield from overlay if user == "root" else ("--map", _USER_MAP, *overlay, "--map", "-")
    if image.on_host:
        yield from _host_system(parts)
    yield from _homes(user)
    yield from _common(parts, limits, workdir)


def plan_zygote(parts: BoxParts, library: Path, groups: Sequence[str]) -> list[str]:
    """argv of the launcher up to the environment and program of a zygote.

    It lives in a tree like that of a box on the host image, but read-only and as root.
    """
    limits = Limits()
    return [
        *(str(parts.program), "launch", "--nofile", "1024"),
        *("--tmpfs", str(parts.mount_point), str(1 << 20), str(1024)),
        *_host_system(parts),
        *_homes("user"),
        *_common(parts, limits, "/work"),
        *("--ro", str(library), ZYGOTE_PATH.lstrip("/")),
        *[word for path in (*map(str, parts.seccomp), *groups) for word in ("--open", path)],
        *("--enter", "--env", f"LD_PRELOAD={ZYGOTE_PATH}", "--env", "TRIALYARD_ZYGOTE=1"),
    ]


def _host_system(parts: BoxParts) -> Iterator[str]:
    yield from ("--public", "/usr", "usr")
    for name in _MERGED:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--link", str(path.readlink()), name)
        elif path.is_dir():
            yield from ("--public", str(path), name)
    yield from ("--ro", str(parts.etc), "etc")
    yield from ("--dir", "0755", "root")


def _homes(user: BoxUser) -> Iterator[str]:
    if user == "root":
        yield from ("--own", "0700", ROOT_HOME.lstrip("/"))
        yield from ("--own-by", str(BOX_UID), "0755", HOME.lstrip("/"))
    else:
        yield from ("--own", "0755", HOME.lstrip("/"))


def _common(parts: BoxParts, limits: Limits, workdir: str) -> Iterator[str]:
    yield from ("--dir", "0755", "proc")
    yield from ("--dir", "0755", "run")
    yield from ("--dir", "0755", "sys/devices/system/cpu")
    cpus = visible_cpus(limits) - 1
    for name in ("online", "possible", "present"):
        yield from ("--file", f"sys/devices/system/cpu/{name}", f"0-{cpus}\n" if cpus else "0\n")
    yield from ("--devices", str(parts.dev), "dev", "--shm", "dev/shm", "--devpts", "dev/pts")
    for path in ("tmp", "var/tmp"):
        yield from ("--own", "1777", path)
    for path in (OUT, workdir):
        yield from ("--own", "0755", path.lstrip("/"))
    yield from ("--ro", str(parts.program), INIT_PATH.lstrip("/"))
    for path, source in parts.layers.items():
        yield from ("--public", str(source), path.lstrip("/"))
    for path, target in parts.links.items():
        yield from ("--dir", "0755", posixpath.dirname(path).lstrip("/"))
        yield from ("--link", target, path.lstrip("/"))


def _ordinary_user() -> Iterator[str]:
    yield from ("--unshare-user", "--uid", str(BOX_UID), "--gid", str(BOX_UID), "--disable-userns")
    yield from ("--cap-drop", "ALL")


def _root_inside(parts: BoxParts) -> Iterator[str]:
    """Joins the user namespace that the launcher made, in which no further one can be made."""
    yield from ("--userns", str(FIRST_SECCOMP_FD + len(parts.seccomp)), "--uid", "0", "--gid", "0")
    yield from ("--cap-drop", "ALL")
    for name in ROOT_CAPABILITIES:
        yield from ("--cap-add", f"CAP_{name}")


def _bubblewrap(parts: BoxParts) -> Iterator[str]:
    yield from ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
    yield from ("--unshare-cgroup", "--hostname", "box")
    yield from ("--new-session", "--die-with-parent", "--as-pid-1")
    yield from ("--dev-bind", f"{parts.mount_point}/root", "/", "--proc", "/proc")
    for name in READ_ONLY_PROC:
        yield from ("--ro-bind", f"/proc/{name}", f"/proc/{name}")
    for name in MASKED_PROC:
        if Path("/proc", name).exists():
            yield from ("--ro-bind", "/dev/null", f"/proc/{name}")
    for index, _ in enumerate(parts.seccomp):
        yield from ("--add-seccomp-fd", str(FIRST_SECCOMP_FD + index))
    yield from ("--chdir", "/", "--", INIT_PATH, "init")
