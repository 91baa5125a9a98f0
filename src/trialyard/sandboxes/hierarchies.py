"""The cgroup trees of this host, and the right to make groups in them.

Where a service manager has delegated our own group to us (systemd: Delegate=yes), boxes stay
below it and count to its limits. Else they lie below the root of the mount where that can be
written, so that a dead owner's are found again whatever group their owner was in; else below
the own group. Version 2 lets a group hand controllers down only while no process is in it, so
the processes of a group that is ours move to a leaf of it.
"""

import contextlib
import errno
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

PARENT = "trialyard"
LEAF = "trialyard-supervisor"
"""Where the processes go that were in a group from which controllers are handed down."""
CONTROLLERS = ("memory", "pids", "cpu")
CORE = "core"
"""In place of a controller: a version 2 tree that has none still kills and freezes whole boxes."""
_COUNTED = frozenset({*CONTROLLERS, "cpuacct"})
_DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd says that a group is its processes' own."""
_MOVING_PASSES = 100


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup tree and the controllers of ours that it has."""

    root: Path
    """The group below which boxes may be made."""
    version: int
    controllers: frozenset[str]


def read_hierarchies() -> list[Hierarchy]:
    """The hierarchies of this host."""
    return find_hierarchies(
        Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )


def find_hierarchies(mountinfo: str, membership: str) -> list[Hierarchy]:
    """Hierarchies from the texts of /proc/self/mountinfo and /proc/self/cgroup, version 2 first."""
    own = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        shown, point = (_unescaped(text) for text in before.split(" ")[3:5])
        names = frozenset(options.split(",")) & _COUNTED if kind == "cgroup" else frozenset()
        group = _own_group(Path(point), shown, own.get(min(names, default=""), "/"))
        if kind == "cgroup":
            root = _choose_root(Path(point), group)
        else:
            root = group if _is_delegated(group) else _choose_root(Path(point), group)
            names = _offered(root) or frozenset({CORE})
        if names:
            found.append(Hierarchy(root, 1 if kind == "cgroup" else 2, names))
    return sorted(found, key=lambda hierarchy: -hierarchy.version)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), text)


def _own_group(mount: Path, shown: str, path: str) -> Path:
    """Our group below a mount that shows the subtree `shown`; the mount when it is outside."""
    below = Path("/", path)
    if not below.is_relative_to(shown) or ".." in below.parts:
        return mount
    group = mount / below.relative_to(shown)
    return group.parent if group.name == LEAF else group


def _choose_root(mount: Path, group: Path) -> Path:
    return mount if os.access(mount, os.W_OK) else group


def _is_delegated(group: Path) -> bool:
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return os.access(group, os.W_OK)
    return False


def _offered(group: Path) -> frozenset[str]:
    try:
        return frozenset((group / "cgroup.controllers").read_text().split()) & {*CONTROLLERS}
    except OSError:
        return frozenset()


# --- handing controllers down -------------------------------------------------------------


def hand_down(group: Path, controllers: Collection[str]) -> dict[str, str]:
    """Let the children of a version 2 group have controllers; those refused, and why."""
    try:
        have = (group / "cgroup.subtree_control").read_text().split()
    except OSError as error:
        return _refused(controllers, error)
    wanted = [name for name in CONTROLLERS if name in controllers and name not in have]
    try:
        _enable(group, wanted)
    except OSError as error:
        return _hand_down_each(group, wanted, is_busy=error.errno == errno.EBUSY)
    return {}


def _enable(group: Path, names: Iterable[str]) -> None:
    text = " ".join(f"+{name}" for name in names)
    if text:
        write_setting(f"{group}/cgroup.subtree_control", text)


def _hand_down_each(group: Path, names: Collection[str], *, is_busy: bool) -> dict[str, str]:
    """Again, one by one, and without processes in the group."""
    refused: dict[str, str] = {}
    try:
        if is_busy:
            _move_members(group)
    except OSError as error:
        return _refused(names, error)
    for name in names:
        try:
            _enable(group, [name])
        except OSError as error:
            refused |= _refused([name], error)
    return refused


def _refused(names: Iterable[str], error: OSError) -> dict[str, str]:
    return {name: error.strerror or str(error) for name in names}


def _move_members(group: Path) -> None:
    leaf = group / LEAF
    leaf.mkdir(exist_ok=True)
    for _ in range(_MOVING_PASSES):  # they may fork meanwhile
        members = (group / "cgroup.procs").read_text().split()
        if not members:
            return
        if "0" in members:
            raise OSError(errno.EBUSY, "processes of another pid namespace are in that group")
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                write_setting(f"{leaf}/cgroup.procs", pid)
    raise OSError(errno.EBUSY, "its processes do not stop forking")


def write_setting(path: str, value: str) -> None:
    """Write one file of a cgroup, in one call. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
