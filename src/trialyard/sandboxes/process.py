"""`CommandProcess`: a background command as its starter holds it (core/process.py)."""

import asyncio
import signal as signals

from trialyard.core.errors import StdinClosed, UserError
from trialyard.core.process import PtySize
from trialyard.core.sandbox import ExecResult, ExecStatus
from trialyard.sandboxes.box_commands import BoxCommands
from trialyard.sandboxes.command import Command
from trialyard.sandboxes.terminal import END_OF_FILE, resize_terminal


class CommandProcess:
    """A command that nobody waits for, or not yet."""

    def __init__(self, command: Command, commands: BoxCommands, *, on_terminal: bool) -> None:
        self._command = command
        self._commands = commands
        self._on_terminal = on_terminal
        self._stdin_closed = command.stdin is None

    @property
    def id(self) -> int:
        return self._command.id

    @property
    def running(self) -> bool:
        return not self._command.done.done()

    def output(self) -> tuple[bytes, bytes]:
        return self._command.stdout.output.kept, self._command.stderr.output.kept

    async def write(self, data: bytes) -> None:
        if self._stdin_closed or self._command.stdin is None:
            raise StdinClosed(
                "the process takes no bytes: its stdin is closed (start it with stdin=None to "
                "keep it open)"
            )
        await self._command.stdin.write(data)

    async def close_stdin(self) -> None:
        if self._stdin_closed or self._command.stdin is None:
            return
        self._stdin_closed = True
        if not self._on_terminal:
            self._command.stdin.end()
        elif self.running:
            await self._command.stdin.write(END_OF_FILE)

    async def signal(self, number: int) -> None:
        if not isinstance(number, int) or not 1 <= number < signals.NSIG:
            raise UserError(f"signal {number!r}: must be from 1 to {signals.NSIG - 1}")
        self._commands.signal(self._command, int(number))

    async def kill(self) -> None:
        if self.running:
            self._command.kill(ExecStatus.CANCELLED)
            await asyncio.wait({self._command.done})
        else:
            await self._commands.kill_rest(self._command.id)

    async def resize(self, size: PtySize) -> None:
        if not self._on_terminal:
            raise UserError("resize: the process has no terminal; start it with pty=PtySize(...)")
        if self.running:
            resize_terminal(self._command.stdout.fd, size)

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        if timeout_s is None:
            return await asyncio.shield(self._command.done)
        done, _ = await asyncio.wait({self._command.done}, timeout=timeout_s)
        if not done:
            raise TimeoutError(f"process {self.id} still runs after {timeout_s} s")
        return self._command.done.result()
