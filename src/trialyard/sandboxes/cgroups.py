"""Control groups of boxes: version 1, version 2, and hosts that mix both.

Each box has one directory per hierarchy below ``trialyard/<owner>``. Limits are set before
the first process joins, counters are read by the supervisor alone, and a directory goes
when its processes are gone. Swap is off: memory means memory.
"""

import contextlib
import errno
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trialyard.core.errors import LimitUnsupported
from trialyard.core.sandbox import Limits
from trialyard.sandboxes.hierarchies import (
    CONTROLLERS,
    CORE,
    PARENT,
    Hierarchy,
    hand_down,
    write_setting,
)

_PERIOD_US = 100_000
_SWAP_LIMITS = ("memory.memsw.limit_in_bytes", "memory.swap.max")
"""Of version 1 and of version 2; a kernel without swap accounting has neither."""
SETUP_PROCESSES = 1
"""bubblewrap's own process waits outside the box's pid namespace but in its cgroup."""
SETUP_LIMITS = Limits(memory_bytes=256 << 20, pids=256)
"""For a program that sets a box up in groups of its own: many threads, little else."""


def _keyed(text: str, key: str) -> int:
    """Value of ``key value`` lines; 0 when absent."""
    match = re.search(rf"^{key} (\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0


def _plain(text: str) -> int:
    return int(text.strip() or 0)


@dataclass(frozen=True, slots=True)
class _Counter:
    """Where a number stands: files below the controller's directory, the best first."""

    controller: str
    files: tuple[str, ...]
    parse: Callable[[str], int]


_PIDS: Mapping[str, _Counter] = {
    "pids_peak": _Counter("pids", ("pids.peak", "pids.current"), _plain),
    "pids_now": _Counter("pids", ("pids.current",), _plain),
    "pids_refused": _Counter("pids", ("pids.events",), lambda t: _keyed(t, "max")),
}
_COUNTERS: Mapping[int, Mapping[str, _Counter]] = {
    1: {
        **_PIDS,
        "oom": _Counter("memory", ("memory.oom_control",), lambda t: _keyed(t, "oom_kill")),
        "limit": _Counter("memory", ("memory.limit_in_bytes",), _plain),
        "peak": _Counter("memory", ("memory.max_usage_in_bytes",), _plain),
        "cpu": _Counter("cpuacct", ("cpuacct.usage",), lambda t: _plain(t) // 1000),
    },
    2: {
        **_PIDS,
        "oom": _Counter("memory", ("memory.events",), lambda t: _keyed(t, "oom_kill")),
        "refused": _Counter("memory", ("memory.events",), lambda t: _keyed(t, "oom")),
        "peak": _Counter("memory", ("memory.peak", "memory.current"), _plain),
        "cpu": _Counter("cpu", ("cpu.stat",), lambda t: _keyed(t, "usage_usec")),
    },
}
_PEAKS = ("peak", "pids_peak")
_CHARGE_BYTES = 256 << 10
"""What the kernel asks for at once, at most, when it cannot do with less."""


@dataclass(slots=True)
class BoxCgroup:
    """The directories of one box. Counters read 0 where the kernel keeps none.

    A kernel that keeps no peaks (of memory before 5.19, of processes before 6.1) is looked at
    now and then, by `sample_peaks` too; what came and went between two looks is not seen.
    """

    directories: Mapping[str, tuple[int, str]]
    """Controller -> (version, directory)."""
    beside: tuple[str, ...] = ()
    """Groups of the program that sets the box up, where it is not to count as the box's."""
    not_enforced: frozenset[str] = frozenset()
    """Limits of the box for which this host has no controller."""
    _fds: dict[str, int] = field(default_factory=dict)
    _highest: dict[str, int] = field(default_factory=dict)
    _sampled: set[str] = field(default_factory=set)

    @property
    def _own_overhead(self) -> int:
        return 0 if self.beside else SETUP_PROCESSES

    @property
    def joins(self) -> tuple[str, ...]:
        """Distinct directories that the box's processes must be in."""
        return tuple(dict.fromkeys(path for _, path in self.directories.values()))

    def _read(self, name: str) -> int:
        for version in (1, 2):
            counter = _COUNTERS[version].get(name)
            have = self.directories.get(counter.controller) if counter else None
            if counter is None or have is None or have[0] != version:
                continue
            fd = self._fds.get(name)
            if fd is None:
                fd, is_best = _open_first(have[1], counter.files)
                self._fds[name] = fd
                if name in _PEAKS and not is_best:
                    self._sampled.add(name)
            value = 0 if fd < 0 else counter.parse(os.pread(fd, 4096, 0).decode())
            if name not in _PEAKS:
                return value
            self._highest[name] = max(value, self._highest.get(name, 0))
            return self._highest[name]
        return 0

    def sample_peaks(self) -> None:
        """Take note of what is in use now, where the kernel keeps no peak."""
        for name in _PEAKS:
            if name in self._sampled or name not in self._fds:
                self._read(name)

    def kills_for_memory(self) -> tuple[int, int]:
        """Processes that the kernel killed: because the box was out of memory, and because
        memory ran out outside of it."""
        kills = self._read("oom")
        return (kills, 0) if kills and self._was_at_limit() else (0, kills)

    def oom_kills(self) -> int:
        """Processes that the kernel killed because the box was out of memory."""
        return self.kills_for_memory()[0]

    def host_oom_kills(self) -> int:
        """Processes that the kernel killed because memory ran out outside the box."""
        return self.kills_for_memory()[1]

    def _was_at_limit(self) -> bool:
        """Version 1 does not count every refusal (memory.memsw.failcnt stays 0 on Linux 6.18)."""
        limit = self._read("limit")
        if limit:
            return self._read("peak") + _CHARGE_BYTES > limit
        return self._read("refused") > 0

    def cpu_us(self) -> int:
        return self._read("cpu")

    def memory_peak_bytes(self) -> int:
        return self._read("peak")

    def pids_peak(self) -> int:
        return max(0, self._read("pids_peak") - self._own_overhead)

    def pids_now(self) -> int:
        """Processes in the box now, its PID 1 included."""
        return self._read("pids_now") - self._own_overhead

    def pids_refused(self) -> int:
        """How often a fork was refused by the pids limit."""
        return self._read("pids_refused")

    def kill(self) -> None:
        """SIGKILL to every process that is still in the box's groups."""
        for path in (*self.joins, *self.beside):
            kill_members(path)

    def close_counters(self) -> None:
        for fd in self._fds.values():
            if fd >= 0:
                os.close(fd)
        self._fds.clear()

    def remove(self) -> bool:
        """Remove what can be removed; True when nothing is left. Call again when False."""
        self.close_counters()
        left = [path for path in (*self.joins, *self.beside) if not remove_directory(path)]
        return not left


def _open_first(directory: str, names: tuple[str, ...]) -> tuple[int, bool]:
    """A descriptor of the first file that is there, or -1; whether it is the best one."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            return os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC), name == names[0]
    return -1, False


def read_members(path: str) -> list[int]:
    """Pids of the processes in one cgroup, none when it is gone."""
    try:
        pids = map(int, Path(path, "cgroup.procs").read_text().split())
    except OSError:  # ENOENT, or ENODEV when it goes while it is read
        return []
    return [pid for pid in pids if pid > 0]  # 0 is a process outside our pid namespace


def kill_members(path: str) -> None:
    """SIGKILL to every process in one cgroup. Repeat until `remove_directory` succeeds.

    With version 2 the kernel kills them all at once, also those that are being forked.
    """
    try:
        write_setting(f"{path}/cgroup.kill", "1")
    except OSError:  # version 1, a kernel before 5.14, or the group is gone
        for pid in read_members(path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def remove_directory(path: str) -> bool:
    """Remove one cgroup; True when it is gone, False while processes are still in it."""
    try:
        Path(path).rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
        return False
    return True


class CgroupParent:
    """The groups below which one owner's boxes live.

    Controllers that this host lacks, or does not let us use, are noted; whether a box can do
    without is decided for each by its limits.
    """

    def __init__(self, hierarchies: list[Hierarchy], owner: str) -> None:
        self._directories: dict[str, tuple[int, str]] = {}
        self._refusals: list[str] = []
        for hierarchy in hierarchies:
            names = hierarchy.controllers - self._directories.keys()
            directory = hierarchy.root / PARENT / owner
            refused = _make_parent(directory, hierarchy.version, names) if names else {}
            for name in names - refused.keys():
                self._directories[name] = (hierarchy.version, str(directory))
            self._refusals += sorted(f"{name} for {directory}: {refused[name]}" for name in refused)
        self._optional = {
            name: "memory" in self._directories
            and Path(self._directories["memory"][1], name).exists()
            for name in (*_SWAP_LIMITS, "memory.oom.group")
        }

    @property
    def limits_swap(self) -> bool:
        """Whether boxes can be kept out of the host's swap."""
        return any(self._optional[name] for name in _SWAP_LIMITS)

    def not_enforced(self, limits: Limits) -> frozenset[str]:
        """Which of the limits cannot be enforced here, by the names that results use.

        Raises `LimitUnsupported` when these limits are strict.
        """
        missing = {name for name in CONTROLLERS if name not in self._directories}
        counts_cpu = any(
            _COUNTERS[version]["cpu"].controller == name
            for name, (version, _) in self._directories.items()
        )
        if limits.cpu_s is not None and not counts_cpu:
            missing.add("cpu")
        if missing and limits.enforcement == "strict":
            raise LimitUnsupported(
                f"this host cannot enforce the limits on {', '.join(sorted(missing))}: no cgroup "
                f"controller for them can be used{''.join(f' ({r})' for r in self._refusals)}. "
                "Run as root and mount the cgroup file system (version 2: mount -t cgroup2 none "
                "/sys/fs/cgroup), or delegate a subtree to this user (systemd: Delegate=yes), or "
                'do without (enforcement = "best-effort")'
            )
        return frozenset(missing)

    def prepare(
        self, name: str, limits: Limits, *, apart: bool = False
    ) -> tuple[BoxCgroup, list[str]]:
        """The groups of one box, and the launcher's steps that make, limit and join them.

        `apart`: the launcher joins groups of its own, with limits of their own, and moves only
        PID 1 to the box's. Nothing is made here: the kernel's cgroup lock may be held for
        milliseconds, and the event loop has other things to do. Raises `LimitUnsupported`.
        """
        box = self._box(name)
        box.not_enforced = self.not_enforced(limits)
        if not apart:
            steps = self._making(box, limits, overhead=SETUP_PROCESSES)
            return box, steps + [word for path in box.joins for word in ("--join", path)]
        setup = self._box(f"{name}-setup")
        box.beside = setup.joins
        steps = self._making(setup, SETUP_LIMITS) + self._making(box, limits)
        steps += [word for path in setup.joins for word in ("--join", path)]
        return box, steps + [word for path in box.joins for word in ("--move", path)]

    def _box(self, name: str) -> BoxCgroup:
        return BoxCgroup(
            {key: (v, f"{path}/{name}") for key, (v, path) in self._directories.items()}
        )

    def _making(self, box: BoxCgroup, limits: Limits, *, overhead: int = 0) -> list[str]:
        steps = [word for path in box.joins for word in ("--group", path)]
        for path, value in self._settings(box, limits, overhead):
            steps += ["--set", path, str(value)]
        return steps

    def _settings(
        self, box: BoxCgroup, limits: Limits, overhead: int
    ) -> Iterator[tuple[str, str | int]]:
        version, memory = box.directories.get("memory", (0, ""))
        if version == 1:
            yield f"{memory}/memory.limit_in_bytes", limits.memory_bytes
            if self._optional["memory.memsw.limit_in_bytes"]:
                yield f"{memory}/memory.memsw.limit_in_bytes", limits.memory_bytes
            yield f"{memory}/memory.swappiness", 0
        elif version == 2:
            yield f"{memory}/memory.max", limits.memory_bytes
            for name, value in (("memory.swap.max", 0), ("memory.oom.group", 1)):
                if self._optional[name]:
                    yield f"{memory}/{name}", value
        version, pids = box.directories.get("pids", (0, ""))
        if version:
            yield f"{pids}/pids.max", limits.pids + overhead
        version, cpu = box.directories.get("cpu", (0, ""))
        quota_us = max(1000, int(limits.cpus * _PERIOD_US))
        if version == 1:
            yield f"{cpu}/cpu.cfs_quota_us", quota_us
        elif version == 2:
            yield f"{cpu}/cpu.max", f"{quota_us} {_PERIOD_US}"

    def directories(self) -> tuple[str, ...]:
        """Distinct parent directories of this owner."""
        return tuple(dict.fromkeys(path for _, path in self._directories.values()))

    def remove(self) -> bool:
        """Remove the owner's own directories; the boxes must be gone."""
        left = [path for path in self.directories() if not remove_directory(path)]
        return not left


def _make_parent(directory: Path, version: int, names: Iterable[str]) -> dict[str, str]:
    """Make an owner's group; the controllers that its boxes cannot have, and why."""
    try:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:  # an owner that left removed the common parent
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return dict.fromkeys(names, error.strerror or str(error))
    refused: dict[str, str] = {}
    if version == 2:
        wanted = set(names) - {CORE}
        for inner in (directory.parent.parent, directory.parent, directory) if wanted else ():
            refused |= hand_down(inner, wanted - refused.keys())
    return refused
