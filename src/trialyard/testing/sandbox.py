"""Sandboxes for tests that need none: files in memory, commands that are plain functions.

`FakeSandbox` keeps the contract of `Sandbox` as far as it needs no process:
fresh boxes, typed errors, files that stay inside, `SandboxLost` once a box is gone. What a
command does is one function, or a table of argv -> result.
"""

import posixpath
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from trialyard.core.errors import (
    FileAccessError,
    SandboxLost,
    UserError,
)
from trialyard.core.ids import content_hash, new_id, tree_hash
from trialyard.core.network import NetworkAttempt, check_relay
from trialyard.core.process import PtySize
from trialyard.core.sandbox import (
    ExecResult,
    ExecStatus,
    FileStat,
    OutputCallback,
)
from trialyard.testing.process import FakeProcess, FakeShell


@dataclass(frozen=True, slots=True)
class FakeCall:
    """One command as the fake sees it; `files` may be changed."""

    argv: tuple[str, ...]
    stdin: bytes
    env: Mapping[str, str]
    cwd: str
    files: MutableMapping[str, bytes]


Program = Callable[[FakeCall], ExecResult]


def exited(code: int = 0, stdout: bytes = b"", stderr: bytes = b"") -> ExecResult:
    """The result of a command that ended by itself."""
    return ExecResult(
        ExecStatus.EXITED,
        exit_code=code,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=len(stdout),
        stderr_bytes=len(stderr),
    )


def scripted(table: Mapping[tuple[str, ...], ExecResult]) -> Program:
    """A program that looks its argv up; unknown commands exit with 127, as in a box."""

    def program(call: FakeCall) -> ExecResult:
        missing = exited(127, stderr=f"cannot start: {call.argv[0]}\n".encode())
        return table.get(call.argv, missing)

    return program


@dataclass(frozen=True, slots=True)
class FakeSnapshot:
    """Files that a box may begin with."""

    base_image: str
    files: Mapping[str, bytes]
    directories: frozenset[str]


class FakeSandbox:
    """One box in memory. `lose` makes it vanish, as a broken host would."""

    def __init__(
        self,
        program: Program,
        workdir: str = "/work",
        *,
        image: str = "host",
        snapshots: MutableMapping[str, FakeSnapshot] | None = None,
    ) -> None:
        self._id = new_id("fake")
        self._workdir = workdir
        self._program = program
        self._lost: SandboxLost | None = None
        self._snapshots = {} if snapshots is None else snapshots
        found = self._snapshots.get(image, FakeSnapshot(image, {}, frozenset()))
        self._base_image = found.base_image
        self.files: dict[str, bytes] = dict(found.files)
        self.directories = {"/", "/tmp", "/out", workdir, *found.directories}
        self.calls: list[FakeCall] = []
        self.relays: dict[int, str] = {}
        self.processes: list[FakeProcess] = []

    @property
    def id(self) -> str:
        return self._id

    @property
    def workdir(self) -> str:
        return self._workdir

    def lose(self, *, host_evidence: str = "") -> None:
        """From now on every call raises `SandboxLost`."""
        self._end(SandboxLost(f"box {self._id} vanished", host_evidence=host_evidence))

    def _end(self, lost: SandboxLost) -> None:
        self._lost = lost
        for process in self.processes:
            process.lose(lost)

    @property
    def is_open(self) -> bool:
        return self._lost is None

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _absolute(self, path: str) -> str:
        if not path or "\0" in path:
            raise UserError(f"path {path!r}: must not be empty or hold NUL")
        return posixpath.normpath(posixpath.join(self._workdir, path))

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
        process = await self.start(
            argv, stdin=stdin, env=env, cwd=cwd, user=user, timeout_s=timeout_s, on_output=on_output
        )
        return await process.wait()

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout_s: float | None = None,
        pty: PtySize | None = None,
        on_output: OutputCallback | None = None,
    ) -> FakeProcess:
        if isinstance(argv, str) or not argv or not argv[0]:
            raise UserError(f"argv {argv!r}: must be a list of words, the first a program")
        if any("\0" in word for word in argv):
            raise UserError(f"argv {argv!r}: must be text without NUL")
        self._check_alive()
        if user not in (None, "user", 1000, "1000"):
            raise UserError(f"user {user!r}: commands of this box run as 'user' (1000) alone")
        where = self._absolute(cwd) if cwd is not None else self._workdir

        def program(written: bytes) -> ExecResult:
            call = FakeCall(tuple(argv), written, dict(env or {}), where, self.files)
            self.calls.append(call)
            result = self._program(call)
            for name, data in (("stdout", result.stdout), ("stderr", result.stderr)):
                if on_output is not None and data:
                    on_output("stdout" if name == "stdout" else "stderr", data)
            return result

        process = FakeProcess(len(self.processes) + 1, program, stdin=stdin, pty=pty is not None)
        self.processes.append(process)
        return process

    async def shell(
        self,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        pty: PtySize | None = None,
    ) -> FakeShell:
        self._check_alive()

        async def run(
            command: str, timeout_s: float | None, on_output: OutputCallback | None
        ) -> ExecResult:
            return await self.run(
                ("sh", "-c", command), env=env, cwd=cwd, user=user, timeout_s=timeout_s,
                on_output=on_output,
            )  # fmt: skip

        return FakeShell(run)

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        self._check_alive()
        data = self.files.get(self._absolute(path))
        if data is None or len(data) > max_bytes:
            raise FileAccessError(f"cannot read {path!r} in the box: missing, no file or too big")
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check_alive()
        path = self._absolute(path)
        if self._is_directory(path):
            raise FileAccessError(f"cannot write {path!r} in the box: a directory is there")
        self.files[path] = bytes(data)

    async def upload(self, files: Mapping[str, bytes], *, directory: str) -> None:
        for name in files:
            if not name or name.startswith("/") or ".." in name.split("/"):
                raise UserError(f"upload path {name!r}: must be relative, without '..' or NUL")
        self.directories.add(self._absolute(directory))
        for name, data in files.items():
            await self.write(f"{self._absolute(directory)}/{name}", data)

    async def download(
        self, directory: str, *, max_bytes: int = 64 << 20, max_files: int = 4096
    ) -> dict[str, bytes]:
        self._check_alive()
        prefix = self._directory(directory).rstrip("/") + "/"
        found = {p[len(prefix) :]: d for p, d in sorted(self.files.items()) if p.startswith(prefix)}
        if len(found) > max_files or sum(map(len, found.values())) > max_bytes:
            raise FileAccessError(f"cannot download {directory!r} from the box: too much")
        return found

    async def list(self, path: str) -> list[FileStat]:
        self._check_alive()
        prefix = self._directory(path).rstrip("/") + "/"
        known = [
            p for p in (*self.files, *self.directories) if p.startswith(prefix) and p != prefix
        ]
        names = sorted({p[len(prefix) :].split("/")[0] for p in known})
        return [await self.stat(prefix + name) for name in names]

    async def stat(self, path: str) -> FileStat:
        self._check_alive()
        path = self._absolute(path)
        if path in self.files:
            return FileStat(path, "file", len(self.files[path]), 0o644)
        return FileStat(self._directory(path), "directory", 0, 0o755)

    async def remove(self, path: str) -> None:
        self._check_alive()
        path = self._absolute(path)
        for name in [n for n in self.files if n == path or n.startswith(f"{path}/")]:
            del self.files[name]
        self.directories = {
            d for d in self.directories if d != path and not d.startswith(f"{path}/")
        }

    async def relay(self, port: int, socket_path: str) -> None:
        self._check_alive()
        check_relay(port, socket_path)
        if port in self.relays:
            raise UserError(f"port {port}: already in use inside the box")
        self.relays[port] = socket_path

    def network_log(self) -> tuple[NetworkAttempt, ...]:
        return ()

    async def snapshot(self) -> str:
        self._check_alive()
        content = [self._base_image, tree_hash(self.files), sorted(self.directories)]
        name = f"snapshot-{content_hash(content)}"
        files, directories = dict(self.files), frozenset(self.directories)
        self._snapshots[name] = FakeSnapshot(self._base_image, files, directories)
        return name

    async def close(self) -> None:
        if self._lost is None:
            self._end(SandboxLost(f"box {self._id} is gone: it was closed"))

    def _is_directory(self, path: str) -> bool:
        return path in self.directories or any(
            name.startswith(f"{path.rstrip('/')}/") for name in (*self.files, *self.directories)
        )

    def _directory(self, path: str) -> str:
        path = self._absolute(path)
        if not self._is_directory(path):
            raise FileAccessError(f"{path!r} does not exist in the box, or is no directory")
        return path
