"""A box whose commands and file operations are told to an observer."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trialyard.core.network import NetworkAttempt
from trialyard.core.sandbox import ExecResult, FileStat, Sandbox
from trialyard.sandboxes.box_events import CommandEnded, FileOperation, Observer


class ObservedSandbox:
    """Does what `box` does. Options are handed on as they come."""

    def __init__(self, box: Sandbox, owner: str, observer: Observer) -> None:
        self._box = box
        self._owner = owner
        self._observer = observer

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def workdir(self) -> str:
        return self._box.workdir

    async def run(self, argv: Sequence[str], **options: Any) -> ExecResult:
        started_s = time.monotonic()
        result, error = None, ""
        try:
            result = await self._box.run(argv, **options)
        except BaseException as raised:
            cancelled = isinstance(raised, asyncio.CancelledError)
            error = "cancelled" if cancelled else f"{type(raised).__name__}: {raised}"
            raise
        finally:
            self._observer(
                CommandEnded(
                    box=self.id,
                    owner=self._owner,
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

    # --- files --------------------------------------------------------------------------

    def _tell(self, operation: str, path: str, files: int = 1, size: int | None = None) -> None:
        self._observer(FileOperation(self.id, self._owner, operation, path, files, size))

    def _tell_error(self, operation: str, path: str, error: BaseException) -> None:
        said = f"{type(error).__name__}: {error}"
        self._observer(FileOperation(self.id, self._owner, operation, path, error=said))

    async def read(self, path: str, **options: Any) -> bytes:
        try:
            data = await self._box.read(path, **options)
        except BaseException as error:
            self._tell_error("read", path, error)
            raise
        self._tell("read", path, 1, len(data))
        return data

    async def write(self, path: str, data: bytes, **options: Any) -> None:
        try:
            await self._box.write(path, data, **options)
        except BaseException as error:
            self._tell_error("write", path, error)
            raise
        self._tell("write", path, 1, len(data))

    async def upload(self, files: Mapping[str, bytes], *, directory: str) -> None:
        try:
            await self._box.upload(files, directory=directory)
        except BaseException as error:
            self._tell_error("upload", directory, error)
            raise
        self._tell("upload", directory, len(files), sum(map(len, files.values())))

    async def download(self, directory: str, **options: Any) -> dict[str, bytes]:
        try:
            files = await self._box.download(directory, **options)
        except BaseException as error:
            self._tell_error("download", directory, error)
            raise
        self._tell("download", directory, len(files), sum(map(len, files.values())))
        return files

    async def remove(self, path: str) -> None:
        try:
            await self._box.remove(path)
        except BaseException as error:
            self._tell_error("remove", path, error)
            raise
        self._tell("remove", path)

    async def list(self, path: str) -> list[FileStat]:
        return await self._box.list(path)

    async def stat(self, path: str) -> FileStat:
        return await self._box.stat(path)

    # --- the rest -----------------------------------------------------------------------

    async def relay(self, port: int, socket_path: str) -> None:
        await self._box.relay(port, socket_path)

    def network_log(self) -> tuple[NetworkAttempt, ...]:
        return self._box.network_log()

    async def snapshot(self) -> str:
        return await self._box.snapshot()

    async def close(self) -> None:
        await self._box.close()
