"""Sandboxes: one live isolated box, its limits, and what a command in it gave."""

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from pydantic import Field

from trialyard.core.errors import UserError
from trialyard.core.network import Network, NetworkAttempt
from trialyard.core.record import Record

if TYPE_CHECKING:
    from trialyard.core.process import Process, PtySize, Shell


class Limits(Record):
    """What one box may use. Every limit is enforced or refused, never ignored.

    A limit that this host cannot enforce is refused (`LimitUnsupported` names it), unless
    `enforcement` is "best-effort": then results say which in `not_enforced`.

    `cpu_s` and `wall_s` count over the life of the box; `idle_s` and `output_bytes`
    per command (the latter per stream). `disk_bytes` and `inodes` cover everything
    writable (workdir, /tmp, /out, /dev/shm, overlay upper). `bandwidth_bytes_per_s` is
    for all that passes the box's proxy and relays, both directions together; without it the
    backend's own bound holds.
    """

    cpus: float = Field(default=1.0, gt=0, le=1024)
    cpu_s: float | None = Field(default=None, gt=0)
    memory_bytes: int = Field(default=512 << 20, ge=16 << 20)
    pids: int = Field(default=64, ge=4, le=32768)
    disk_bytes: int = Field(default=256 << 20, ge=1 << 20)
    inodes: int = Field(default=16384, ge=64)
    open_files: int = Field(default=1024, ge=16, le=1 << 20)
    output_bytes: int = Field(default=1 << 20, ge=0, le=1 << 30)
    wall_s: float = Field(default=3600.0, gt=0, le=30 * 86400)
    idle_s: float | None = Field(default=None, gt=0)
    network: Network = Network()
    bandwidth_bytes_per_s: int | None = Field(default=None, ge=1024, le=1 << 40)
    enforcement: Literal["strict", "best-effort"] = "strict"


BoxUser = Literal["user", "root"]
USERS: tuple[BoxUser, ...] = get_args(BoxUser)
"""Who the commands of a box are unless they say otherwise: an ordinary user, or root inside (with
the rights of a container's root in this box alone; on the host it is nobody)."""


class ExecStatus(StrEnum):
    """How a command ended; decided by the supervisor, never by the program's text."""

    EXITED = "exited"
    """The leader exited by itself; see `exit_code`."""
    SIGNALED = "signaled"
    """The leader died of a signal; see `signal`."""
    TIMEOUT = "timeout"
    """Wall, idle or CPU time ran out; `limits_hit` says which; all descendants are dead."""
    OOM = "oom"
    """The box ran out of memory (from the cgroup's counters, not from exit code 137)."""
    OUTPUT_LIMIT = "output_limit"
    """Killed because it wrote more than 16 times `output_bytes` to one stream."""
    CANCELLED = "cancelled"
    """The caller cancelled."""


@dataclass(frozen=True, slots=True)
class ExecUsage:
    """What one command used. Box-wide peaks where the kernel counts only per box."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_peak_bytes: int = 0
    pids_peak: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ExecResult:
    """Outcome of `Sandbox.run`. `stdout` and `stderr` are what was kept, as bytes."""

    status: ExecStatus
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_bytes: int = 0
    """Bytes written to stdout before truncation."""
    stderr_bytes: int = 0
    """Bytes written to stderr before truncation."""
    limits_hit: frozenset[str] = frozenset()
    """Subset of cpu memory pids disk inodes output wall idle open_files network."""
    usage: ExecUsage = field(default_factory=ExecUsage)
    not_enforced: frozenset[str] = frozenset()
    """Limits that this host could not enforce; empty unless they were asked for best-effort."""

    @property
    def ok(self) -> bool:
        """True when the leader exited by itself with code 0."""
        return self.status is ExecStatus.EXITED and self.exit_code == 0

    def to_json(self) -> dict[str, Any]:
        """JSON form: text with undecodable bytes replaced, plus base64 where that lost some."""
        out: dict[str, Any] = {
            "status": self.status.value,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "stdout_bytes": self.stdout_bytes,
            "stderr_bytes": self.stderr_bytes,
            "limits_hit": sorted(self.limits_hit),
            "usage": {name: getattr(self.usage, name) for name in ExecUsage.__slots__},
        }
        if self.not_enforced:
            out["not_enforced"] = sorted(self.not_enforced)
        for name, data in (("stdout", self.stdout), ("stderr", self.stderr)):
            out[name] = data.decode("utf-8", "replace")
            if out[name].encode("utf-8") != data:
                out[f"{name}_base64"] = base64.b64encode(data).decode()
        return out


@dataclass(frozen=True, slots=True)
class FileStat:
    """One directory entry inside a box; links are described, never followed."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    size_bytes: int
    mode: int


OutputCallback = Callable[[Literal["stdout", "stderr"], bytes], None]


class Sandbox(Protocol):
    """One live isolated box. Single-use: it serves one task attempt and is destroyed.

    Paths are absolute inside the box; relative ones count from the workdir. No file
    operation follows a link out of the box. Every method raises `SandboxLost` once
    the box is gone. `/out` exists, empty and writable.
    """

    @property
    def id(self) -> str:
        """Unique name of the box."""

    @property
    def workdir(self) -> str:
        """Absolute path of the working directory inside the box."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout_s: float | None = None,
        on_output: OutputCallback | None = None,
    ) -> ExecResult:
        """Run one command and wait for its leader to exit: `start`, then `wait`.

        At a time-out every descendant is dead before this returns, and the output so
        far is in the result. `env` is the whole environment (PATH, HOME, LANG and
        OMP_NUM_THREADS get defaults). `user` is a name or number of the box's own; a box
        without root inside has but one. Cancelling the call kills the command. Raises
        `SandboxLost`, or `UserError` for an empty argv, NUL bytes, a cwd outside or a user
        that cannot be.
        """

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout_s: float | None = None,
        pty: "PtySize | None" = None,
        on_output: OutputCallback | None = None,
    ) -> "Process":
        """Start one command and do not wait for it. It ends with its box at the latest.

        With `stdin` None its stdin stays open for `Process.write`. With `pty` it runs on a
        terminal of that size, which `stdin` is typed on and which stays open; it may take
        input as long as it runs. Otherwise as `run`.
        """

    async def shell(
        self,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        pty: "PtySize | None" = None,
    ) -> "Shell":
        """Start bash, or sh in an image without it, and keep it for many commands.

        With `pty` its commands run on a terminal of that size. Raises as `run` does, and
        `ShellEnded` when the image has neither.
        """

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """Content of a regular file. Raises `FileAccessError` (missing, not a file, too big)."""

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a regular file, with parent directories; owned by the box's user."""

    async def upload(self, files: Mapping[str, bytes], *, directory: str) -> None:
        """Write many files below `directory` at once."""

    async def download(
        self, directory: str, *, max_bytes: int = 64 << 20, max_files: int = 4096
    ) -> dict[str, bytes]:
        """Regular files below `directory` as relative path -> content; links are left out."""

    async def list(self, path: str) -> list[FileStat]:
        """Entries of a directory, sorted by name."""

    async def stat(self, path: str) -> FileStat:
        """Describe one path without following a final link."""

    async def remove(self, path: str) -> None:
        """Remove a file or a whole directory. Missing paths are fine."""

    async def relay(self, port: int, socket_path: str) -> None:
        """Connections to 127.0.0.1:`port` inside reach this Unix socket of the host.

        And nothing else, whatever the network mode, until the box ends. Raises `UserError`
        for a bad port, a port in use, or where no Unix socket is.
        """

    def network_log(self) -> tuple[NetworkAttempt, ...]:
        """Attempts of the box to reach something, oldest first; also when it is gone.

        Of very many the first and the latest are kept.
        """

    async def snapshot(self) -> str:
        """Save the files of the box; the name is an image that its pool's `acquire` takes.

        Only what the box changed is saved, by content: equal content, equal name. Its
        processes stand still meanwhile and go on after; they are not saved, nor are /dev/shm,
        sockets and devices. Works on a box that ran out of memory or time, until it is
        closed. Raises `SnapshotRefused` for content that no snapshot may hold, and
        `SandboxLost` once the box is closed.
        """

    async def close(self) -> None:
        """Destroy the box and all that runs in it. Idempotent; never raises."""


class SandboxPool(Protocol):
    """Hands out fresh boxes. A used box is never handed out again."""

    def acquire(
        self,
        *,
        image: str,
        limits: Limits,
        owner: str,
        workdir: str = "/work",
        user: BoxUser = "user",
        priority: int = 0,
        timeout_s: float = 60.0,
        ttl_s: float | None = None,
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh box for the length of an ``async with`` block; destroyed at its end.

        Waits up to `timeout_s` for room (0: not at all), then raises `ResourceExhausted`.
        Bigger `priority` goes first; among equals the `owner` with the fewest boxes, then
        who came first; waiting raises the priority, so nobody starves. The box lives at most
        `ttl_s` (default and maximum: the limit's `wall_s`), whoever forgets it. Raises
        `NotFoundError` for an unknown image and `SandboxUnavailable` when this host
        cannot isolate.
        """

    def acquire_many(  # noqa: PLR0913 - a lease is said in full at one place
        self,
        count: int,
        *,
        image: str,
        limits: Limits,
        owner: str,
        workdir: str = "/work",
        user: BoxUser = "user",
        priority: int = 0,
        timeout_s: float = 60.0,
        ttl_s: float | None = None,
    ) -> AbstractAsyncContextManager[list[Sandbox]]:
        """`count` fresh boxes at once, all or none; otherwise as `acquire`.

        Groups cannot block each other: none holds a part of its boxes while it waits.
        Raises `UserError` at once when the pool could never hold `count` boxes.
        """

    def fork(
        self, sandbox: Sandbox, count: int, *, owner: str, timeout_s: float = 60.0
    ) -> AbstractAsyncContextManager[list[Sandbox]]:
        """`count` boxes of the kind of `sandbox` that begin with its files; all or none.

        `sandbox` must be in use from this pool and goes on by itself. Raises as its `snapshot`
        and as `acquire` do, and `NotFoundError` for a box of somebody else's.
        """

    def image_digest(self, image: str) -> str:
        """Content digest of the image that `acquire` would use."""

    async def close(self) -> None:
        """Destroy every box, warm or leased. Idempotent."""

    def counters(self) -> dict[str, int]:
        """Counts: created, destroyed, live, warm, lost, leaked."""


def check_user(user: str) -> BoxUser:
    """The same. Raises `UserError` when a box cannot have such a user."""
    for known in USERS:
        if user == known:
            return known
    raise UserError(f"user {user!r}: must be one of {', '.join(map(repr, USERS))}")


def check_ttl(ttl_s: float | None, limits: Limits) -> float:
    """How long a leased box may live. Raises `UserError` beyond the limit's `wall_s`."""
    if ttl_s is None:
        return limits.wall_s
    if not 0 < ttl_s <= limits.wall_s:
        raise UserError(f"ttl_s {ttl_s!r}: must be above 0 and at most wall_s {limits.wall_s}")
    return ttl_s
