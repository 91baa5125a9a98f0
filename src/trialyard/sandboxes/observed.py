"""A box whose commands and file operations are told to an observer."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from trialyard.core.errors import SandboxError
from trialyard.core.network import NetworkAttempt
from trialyard.core.process import Process, Shell
from trialyard.core.sandbox import ExecResult, FileStat, Sandbox
from trialyard.sandboxes.box_events import CommandEnded, FileOperation, Observer, Via

T = TypeVar("T")


class CommandTeller:
    """Tells of the commands of one box when they end."""

    def __init__(self, box: str, owner: str, observer: Observer) -> None:
        self._box = box
        self._owner = owner
        self._observer = observer
        self._following: set[asyncio.Task[None]] = set()

    async def watch(
        self,
        via: Via,
        argv: Sequence[str],
        options: Mapping[str, Any],
        ending: Awaitable[ExecResult],
    ) -> ExecResult:
        """The result of `ending`, or its error, told on the way."""
        started_s = time.monotonic()
        result, error = None, ""
        try:
            result = await ending
        except BaseException as raised:
            cancelled = isinstance(raised, asyncio.CancelledError)
            error = "cancelled" if cancelled else f"{type(raised).__name__}: {raised}"
            raise
        finally:
            self._observer(
                CommandEnded(
                    box=self._box,
                    owner=self._owner,
                    via=via,
                    argv=tuple(map(str, argv)),
                    env=tuple(options.get("env") or ()),
                    cwd=options.get("cwd"),
                    stdin_bytes=len(options.get("stdin") or b""),
                    duration_s=time.monotonic() - started_s,
                    result=result,
                    error=error,
                )
            )
        return result

    def follow(
        self, argv: Sequence[str], options: Mapping[str, Any], ending: Awaitable[ExecResult]
    ) -> None:
        """The same for a command that nobody need wait for."""

        async def wait() -> None:
            with contextlib.suppress(SandboxError):  # told already
                await self.watch("start", argv, options, ending)

        task = asyncio.get_running_loop().create_task(wait())
        self._following.add(task)
        task.add_done_callback(self._following.discard)


class ObservedShell:
    """Does what `shell` does."""

    def __init__(self, shell: Shell, teller: CommandTeller) -> None:
        self._shell = shell
        self._teller = teller

    @property
    def alive(self) -> bool:
        return self._shell.alive

    @property
    def dropped_bytes(self) -> int:
        return self._shell.dropped_bytes

    async def run(self, command: str, **options: Any) -> ExecResult:
        ending = self._shell.run(command, **options)
        return await self._teller.watch("shell", (command,), {}, ending)

    async def interrupt(self) -> None:
        await self._shell.interrupt()

    async def close(self) -> None:
        await self._shell.close()


class ObservedSandbox:
    """Does what `box` does. Options are handed on as they come."""

    def __init__(self, box: Sandbox, owner: str, observer: Observer) -> None:
        self._box: Any = box
        self._owner = owner
        self._observer = observer
        self._commands = CommandTeller(box.id, owner, observer)

    @property
    def id(self) -> str:
        return str(self._box.id)

    @property
    def workdir(self) -> str:
        return str(self._box.workdir)

    async def run(self, argv: Sequence[str], **options: Any) -> ExecResult:
        return await self._commands.watch("run", argv, options, self._box.run(argv, **options))

    async def start(self, argv: Sequence[str], **options: Any) -> Process:
        process: Process = await self._box.start(argv, **options)
        self._commands.follow(argv, options, process.wait())
        return process

    async def shell(self, **options: Any) -> ObservedShell:
        return ObservedShell(await self._box.shell(**options), self._commands)

    # --- files --------------------------------------------------------------------------

    async def _told(
        self,
        operation: str,
        path: str,
        work: Awaitable[T],
        count: Callable[[T], tuple[int, int | None]],
    ) -> T:
        """The result of `work`, or its error, told; `count` gives files and bytes."""
        try:
            done = await work
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
            self._observer(FileOperation(self.id, self._owner, operation, path, error=said))
            raise
        self._observer(FileOperation(self.id, self._owner, operation, path, *count(done)))
        return done

    async def read(self, path: str, **options: Any) -> bytes:
        work: Awaitable[bytes] = self._box.read(path, **options)
        return await self._told("read", path, work, lambda data: (1, len(data)))

    async def write(self, path: str, data: bytes, **options: Any) -> None:
        work = self._box.write(path, data, **options)
        await self._told("write", path, work, lambda _: (1, len(data)))

    async def upload(self, files: Mapping[str, bytes], *, directory: str) -> None:
        work = self._box.upload(files, directory=directory)
        await self._told("upload", directory, work, lambda _: _total(files))

    async def download(self, directory: str, **options: Any) -> dict[str, bytes]:
        work: Awaitable[dict[str, bytes]] = self._box.download(directory, **options)
        return await self._told("download", directory, work, _total)

    async def remove(self, path: str) -> None:
        await self._told("remove", path, self._box.remove(path), lambda _: (1, None))

    async def stat(self, path: str) -> FileStat:
        found: FileStat = await self._box.stat(path)
        return found

    # --- the rest -----------------------------------------------------------------------

    async def relay(self, port: int, socket_path: str) -> None:
        await self._box.relay(port, socket_path)

    def network_log(self) -> tuple[NetworkAttempt, ...]:
        attempts: tuple[NetworkAttempt, ...] = self._box.network_log()
        return attempts

    async def snapshot(self) -> str:
        return str(await self._box.snapshot())

    async def close(self) -> None:
        await self._box.close()

    async def list(self, path: str) -> list[FileStat]:
        found: list[FileStat] = await self._box.list(path)
        return found


def _total(files: Mapping[str, bytes]) -> tuple[int, int]:
    return len(files), sum(map(len, files.values()))
