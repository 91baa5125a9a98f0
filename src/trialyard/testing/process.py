"""Processes and shells of `FakeSandbox`: a program has ended when it was started.

A process that is to take input or a terminal runs on until it is killed or its stdin ends.
"""

import asyncio
from collections.abc import Awaitable, Callable

from trialyard.core.errors import SandboxLost, ShellEnded, StdinClosed, UserError
from trialyard.core.process import PtySize
from trialyard.core.sandbox import ExecResult, ExecStatus, OutputCallback

MAX_COMMAND_BYTES = 16 << 20


class FakeProcess:
    """`program` is called with what was written once stdin ends."""

    def __init__(
        self, id: int, program: Callable[[bytes], ExecResult], *, stdin: bytes | None, pty: bool
    ) -> None:
        self._id = id
        self._program = program
        self._has_pty = pty
        self._written = stdin or b""
        self._takes_input = pty or stdin is None
        self._done: asyncio.Future[ExecResult] = asyncio.get_running_loop().create_future()
        self._done.add_done_callback(lambda done: done.exception())
        self.signals: list[int] = []
        if not self._takes_input:
            self._end()

    @property
    def id(self) -> int:
        return self._id

    @property
    def running(self) -> bool:
        return not self._done.done()

    def _end(self) -> None:
        self._takes_input = False
        if self.running:
            self._done.set_result(self._program(self._written))

    def lose(self, lost: SandboxLost) -> None:
        """Its box is gone."""
        if self.running:
            self._done.set_exception(lost)

    def output(self) -> tuple[bytes, bytes]:
        if self.running or self._done.exception() is not None:
            return b"", b""
        return self._done.result().stdout, self._done.result().stderr

    async def write(self, data: bytes) -> None:
        if not self._takes_input:
            raise StdinClosed("the process takes no bytes: its stdin is closed")
        self._written += data

    async def close_stdin(self) -> None:
        if self._takes_input:
            self._end()

    async def signal(self, number: int) -> None:
        if not isinstance(number, int) or not 1 <= number <= 64:
            raise UserError(f"signal {number!r}: must be from 1 to 64")
        self.signals.append(number)
        if self.running:
            self._takes_input = False
            self._done.set_result(ExecResult(ExecStatus.SIGNALED, signal=number))

    async def kill(self) -> None:
        self._takes_input = False
        if self.running:
            self._done.set_result(ExecResult(ExecStatus.CANCELLED))

    async def resize(self, size: PtySize) -> None:
        if not self._has_pty:
            raise UserError("resize: the process has no terminal; start it with pty=PtySize(...)")

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        done, _ = await asyncio.wait({self._done}, timeout=timeout_s)
        if not done:
            raise TimeoutError(f"process {self._id} still runs after {timeout_s} s")
        return self._done.result()


class FakeShell:
    """Every command is ``sh -c``; ``exit N`` ends the shell."""

    def __init__(
        self, run: Callable[[str, float | None, OutputCallback | None], Awaitable[ExecResult]]
    ) -> None:
        self._run = run
        self._ended: ShellEnded | None = None
        self.dropped_bytes = 0

    @property
    def alive(self) -> bool:
        return self._ended is None

    async def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        on_output: OutputCallback | None = None,
    ) -> ExecResult:
        check_command(command)
        words = command.split()
        if self._ended is None and words[:1] == ["exit"]:
            code = int(words[1]) if len(words) > 1 else 0
            self._ended = ShellEnded(f"the shell exited with code {code}", exit_code=code)
        if self._ended is not None:
            raise self._ended
        return await self._run(command, timeout_s, on_output)

    async def interrupt(self) -> None:
        """Nothing runs that could be interrupted."""

    async def close(self) -> None:
        self._ended = self._ended or ShellEnded("the shell was closed")


def check_command(command: str) -> None:
    """Raises `UserError` for a text that no shell can take."""
    if not isinstance(command, str) or "\0" in command:
        raise UserError("command: must be text without NUL")
    if len(command) > MAX_COMMAND_BYTES:
        raise UserError(f"command: longer than {MAX_COMMAND_BYTES} bytes; write it to a file")
