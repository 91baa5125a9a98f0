"""Supervisors killed with SIGKILL at random moments, and what is left of each afterwards.

A victim makes, uses, forks and destroys boxes as fast as it can. It is stopped for a moment
to note every process that descends from it, and killed. Every second keeper is killed too;
then the sweep of the next start has to do the work.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from trialyard.sandboxes.hierarchies import PARENT, read_hierarchies
from trialyard.sandboxes.host import RUNTIME_DIRECTORY
from trialyard.sandboxes.reclaim import list_owners, reap
from trialyard.sandboxes.snapshot_files import SnapshotDirectory

TIMEOUT_S = 10.0
MODES = ("churn", "groups", "commands", "forks", "idle", "opening")
"""What the victim is at; "opening" is killed while it starts, as early as it comes."""
VICTIM = """
import asyncio, sys
from pathlib import Path
from trialyard.core.sandbox import Limits
from trialyard.images.host import HOST, host_image
from trialyard.sandboxes.pool import NamespacePool
from trialyard.sandboxes.snapshots import SnapshotStore

mode, snapshots = sys.argv[1:]
kind = {"image": HOST, "limits": Limits(), "owner": "victim"}

async def once(pool):
    if mode == "groups":
        async with pool.acquire_many(3, **kind) as boxes:
            await asyncio.gather(*(box.run(["true"]) for box in boxes))
        return
    async with pool.acquire(**kind) as box:
        if mode == "commands":
            await box.run(["sh", "-c", "setsid sleep 60 & yes | head -c 1000000; exit 0"])
        elif mode == "forks":
            await box.write("f", b"x" * 100_000)
            async with pool.fork(box, 2, owner="victim"):
                pass
        elif mode == "idle":
            await asyncio.gather(*(box.run(["sleep", "60"]) for _ in range(3)))
        else:
            await box.run(["true"])

async def caller(pool):
    while True:
        await once(pool)

async def main():
    store = SnapshotStore(Path(snapshots))
    pool = NamespacePool({HOST: host_image()}, max_boxes=9, warm_per_kind=2, snapshots=store)
    async with pool.acquire(**kind):
        print(pool.supervisor, flush=True)
    await asyncio.gather(*(caller(pool) for _ in range(3)))

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Kills:
    """What came of it."""

    boxes: int
    """How many boxes the victims had when they died."""
    left: list[str]
    """What was left after the sweep; empty when all is well."""
    longest_s: float
    """The longest that anything of a victim was still there."""


def kill_owners(count: int, draw: random.Random) -> Kills:
    """Kill `count` supervisors one after the other."""
    boxes, left, longest_s = 0, [], 0.0
    with tempfile.TemporaryDirectory() as directory:
        snapshots = Path(directory) / "snapshots"
        for number in range(count):
            mode = MODES[number % len(MODES)]
            victim = Victim(mode, snapshots)
            by_sweep = mode == "opening" or draw.random() < 0.5
            time.sleep(draw.random() * 0.8 if mode == "opening" else draw.random() ** 3 * 0.8)
            boxes += victim.kill(with_keeper=by_sweep)
            remains, took_s = victim.wait_until_gone(by_sweep=by_sweep)
            left += [f"{mode} {number}: {each}" for each in remains]
            longest_s = max(longest_s, took_s)
        SnapshotDirectory(snapshots).open()  # as the next start does
        for kind in ("new", "layers", "names"):
            left += [f"snapshots/{kind}/{each.name}" for each in (snapshots / kind).iterdir()]
    return Kills(boxes, left, longest_s)


class Victim:
    """A supervisor in a process of its own, already at work."""

    def __init__(self, mode: str, snapshots: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", VICTIM, mode, str(snapshots)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._name = f"p{self._process.pid}-*"
        if mode != "opening":
            assert self._process.stdout is not None
            assert self._process.stdout.readline().strip(), "the victim did not start"
        self._descendants: set[tuple[int, str]] = set()

    def kill(self, *, with_keeper: bool) -> int:
        """SIGKILL; returns how many boxes its table had."""
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)
        self._descendants = _descendants(pid)
        if with_keeper:
            for child, _ in self._descendants:
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                    if words[1:2] == [b"keeper"]:
                        os.kill(child, signal.SIGKILL)
        found = [o for o in list_owners(RUNTIME_DIRECTORY) if fnmatch(o.supervisor, self._name)]
        os.kill(pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return sum(len(owner.record.boxes) for owner in found)

    def wait_until_gone(self, *, by_sweep: bool) -> tuple[list[str], float]:
        """What is still there at last, and how long it took."""
        started_s = time.monotonic()
        while True:
            if by_sweep:
                reap(RUNTIME_DIRECTORY, read_hierarchies())
            left = self.remains()
            took_s = time.monotonic() - started_s
            if not left or took_s > TIMEOUT_S:
                return left, took_s
            time.sleep(0.01)

    def remains(self) -> list[str]:
        parents = [hierarchy.root / PARENT for hierarchy in read_hierarchies()]
        groups = [group for parent in parents for group in parent.glob(self._name)]
        directories = list((RUNTIME_DIRECTORY / "owners").glob(self._name))
        mark = str(RUNTIME_DIRECTORY / "owners" / self._name[:-1])
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        locks = Path("/proc/locks").read_text().splitlines()
        return [
            *(f"process {pid} {_name(pid)}" for pid, start in self._descendants if _is(pid, start)),
            *(f"cgroup {group}" for group in groups),
            *(f"directory {path}" for path in directories),
            *(f"mount {line}" for line in mounts if mark in line),
            *(f"lock {line}" for line in locks if line.split()[4:5] == [str(self._process.pid)]),
        ]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; nothing when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if fields[0] in "ZX" else fields


def _descendants(pid: int) -> set[tuple[int, str]]:
    """(pid, start time) of every process below one."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            parents[int(entry)] = (int(fields[1]), fields[19])
    found: set[int] = set()
    while True:
        more = {c for c, (p, _) in parents.items() if p == pid or p in found} - found
        if not more:
            return {(child, parents[child][1]) for child in found}
        found |= more


def _is(pid: int, start: str) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[19] == start


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()[:80].decode("utf-8", "replace")
    return ""
