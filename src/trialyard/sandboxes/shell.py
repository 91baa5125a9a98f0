"""`BoxShell`: an interpreter that stays alive in a box between commands (core/process.py).

It is a background command of its box whose descriptors are its script, its status and the text
to run (shell_script.py). Its commands have numbers of their own, so that one of them can be
killed with all that it started while the shell and older jobs live on. What it reports is
believed only about its own exit codes.
"""

import asyncio
import contextlib
import os
import signal as signals
from dataclasses import replace
from typing import Protocol

from trialyard.core.errors import SandboxError, ShellEnded, UserError
from trialyard.core.sandbox import ExecResult, ExecStatus, OutputCallback
from trialyard.sandboxes.box_commands import BoxCommands
from trialyard.sandboxes.box_view import BoxView
from trialyard.sandboxes.command import Command, CommandOptions
from trialyard.sandboxes.meter import Output
from trialyard.sandboxes.request import RunRequest
from trialyard.sandboxes.shell_command import ShellCommand
from trialyard.sandboxes.shell_script import FIRST, Report, ShellScript
from trialyard.sandboxes.shell_wires import ShellWires
from trialyard.sandboxes.streams import Ends

MAX_COMMAND_BYTES = 16 << 20
START_TIMEOUT_S = 20.0
_STOP_TRIES = 10
_STOP_WAIT_S = 0.05
_ASK_AFTER_S = (0.01, 0.05, 0.2, 1.0, 5.0)
_HEAR_WITHIN_S = 1.0
_IDLE_PAUSE_S = 0.05
"""How long a job that floods an idle shell has to wait for its next reader."""

_ENDED_BY_ITSELF = (ExecStatus.EXITED, ExecStatus.SIGNALED, ExecStatus.CANCELLED)
"""Or by our hand, but not for a limit."""


class ShelledBox(BoxView, Protocol):
    """What a shell needs of its box."""

    async def check_alive(self) -> None:
        """Raises `SandboxLost` when the box is gone or going."""
        ...


class BoxShell:
    """Made by `open`; runs one command at a time, the others wait for their turn."""

    def __init__(self, box: ShelledBox, commands: BoxCommands, script: ShellScript) -> None:
        self._box = box
        self._loop = box.loop
        self._commands = commands
        self._script = script
        self._turn = asyncio.Lock()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._current: ShellCommand | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._last = FIRST
        self._dropped_bytes = 0
        self._why = ""
        self._wires = ShellWires(self._loop, self._reported, self._broke_off)
        self._leader: Command

    @classmethod
    async def open(
        cls,
        box: ShelledBox,
        commands: BoxCommands,
        script: ShellScript,
        request: RunRequest,
        ends: Ends,
    ) -> "BoxShell":
        """Start the interpreter and wait until it takes commands. Raises `ShellEnded`."""
        try:
            shell = cls(box, commands, script)
            shell._wires.give(ends, script.first_fd)
        except BaseException:
            ends.close()
            raise
        options = CommandOptions(stdin_stays_open=True, output_bytes=box.limits.output_bytes)
        request = replace(request, argv=script.argv)
        try:
            shell._leader = await commands.start(request, ends, options, watch=shell._watch)
        except BaseException:
            shell._wires.close()
            raise
        shell._leader.done.add_done_callback(shell._leader_ended)
        try:
            shell._tell(script.opening())
            await asyncio.wait_for(asyncio.shield(shell._ready), START_TIMEOUT_S)
        except TimeoutError:
            await shell.close()
            raise ShellEnded(f"the shell took no commands within {START_TIMEOUT_S} s") from None
        except BaseException:
            await shell.close()
            raise
        if not shell.alive:
            raise shell._ended(shell._leader.stdout.output, shell._leader.stderr.output)
        shell._forget_output()
        shell._dropped_bytes = 0  # what interpreters say of missing terminals
        return shell

    @property
    def alive(self) -> bool:
        return not self._leader.done.done() and not self._why

    @property
    def dropped_bytes(self) -> int:
        now = self._current
        is_idle = now is None or now.over.done()
        return self._dropped_bytes + (self._num_new_bytes() if is_idle else 0)

    # --- running ------------------------------------------------------------------------

    async def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        on_output: OutputCallback | None = None,
    ) -> ExecResult:
        text = check_command(command)
        if timeout_s is not None and not timeout_s > 0:
            raise UserError(f"timeout_s {timeout_s!r}: must be positive")
        async with self._turn:
            if self._stopping is not None:  # of a caller that did not wait for it
                await asyncio.wait({self._stopping})
            await self._box.check_alive()
            if not self.alive:
                raise self._ended()
            now = self._begin(text, timeout_s, on_output)
            try:
                await asyncio.shield(now.over)
            except asyncio.CancelledError:
                self._stop(now, ExecStatus.CANCELLED)
                await asyncio.wait({now.over})
                raise
            finally:
                self._end(now)
            if self._stopping is not None:
                await asyncio.wait({self._stopping})
            return self._result(now)

    def _begin(
        self, text: bytes, timeout_s: float | None, on_output: OutputCallback | None
    ) -> ShellCommand:
        self._forget_output()
        now = ShellCommand(
            self._box,
            self._commands.take_id(),
            timeout_s=timeout_s,
            on_output=on_output,
            stop=self._stop,
        )
        self._current = now
        try:
            self._wires.put_text(self._script.text(text, now.id, self._last))
        except OSError as error:
            now.end()
            self._current = None
            raise SandboxError(f"the command's text found no room ({error.strerror})") from error
        self._tell(self._script.source(now.id))
        if self._script.must_be_asked_again:
            self._ask_again(now, 0)
        return now

    def _ask_again(self, now: ShellCommand, turn: int) -> None:
        wait_s = _ASK_AFTER_S[min(turn, len(_ASK_AFTER_S) - 1)]

        def ask() -> None:
            if not now.over.done() and self.alive:
                self._tell(self._script.report(now.id))
                self._ask_again(now, turn + 1)

        now.asking = self._loop.call_later(wait_s, ask)

    def _tell(self, lines: str) -> None:
        try:
            self._wires.write(lines)
        except BrokenPipeError:  # it has ended, which we are about to hear
            self._loop.call_later(_HEAR_WITHIN_S, self._broke_off, "it takes no more commands")
        except OSError:
            self._broke_off("it takes no more commands")

    def _end(self, now: ShellCommand) -> None:
        now.end()
        self._current = None

    def _result(self, now: ShellCommand) -> ExecResult:
        if now.callback_error is not None:
            raise now.callback_error
        if now.report is not None:
            self._last = now.report
            return now.result(ExecStatus.EXITED, now.report.exit_code)
        ended = self._leader.done.result()  # raises SandboxLost
        if now.reason is None and ended.status in _ENDED_BY_ITSELF:
            raise self._ended(now.stdout, now.stderr)
        return now.result(ended.status, None, ended.limits_hit)

    # --- what comes from the shell ------------------------------------------------------

    def _reported(self, report: Report) -> None:
        now = self._current
        if report.id == 0 and not self._ready.done():
            self._ready.set_result(None)
        elif now is not None and report.id == now.id and not now.over.done():
            self._take_output(now)
            now.report = report
            now.over.set_result(None)

    def _take_output(self, now: ShellCommand) -> None:
        """All that the command wrote is in the pipes by now."""
        self._leader.stdout.drain()
        self._leader.stderr.drain()
        now.stdout, now.stderr = self._leader.stdout.output, self._leader.stderr.output
        self._leader.stdout.restart()
        self._leader.stderr.restart()

    def _watch(self, name: str, kept: bytes) -> None:
        now = self._current
        stream = self._leader.stdout if name == "stdout" else self._leader.stderr
        if now is not None and not now.over.done():
            now.took(name, kept, stream.total_bytes)
        elif stream.total_bytes > self._box.limits.output_bytes:
            stream.pause(_IDLE_PAUSE_S)

    def _num_new_bytes(self) -> int:
        return self._leader.stdout.total_bytes + self._leader.stderr.total_bytes

    def _forget_output(self) -> None:
        """What came since the last command ended belongs to none."""
        self._leader.stdout.drain()
        self._leader.stderr.drain()
        self._dropped_bytes += self._num_new_bytes()
        self._leader.stdout.restart()
        self._leader.stderr.restart()

    # --- the end ------------------------------------------------------------------------

    def _stop(self, now: ShellCommand, reason: ExecStatus, limit: str | None = None) -> None:
        """End what the command started, and the shell too if it does not come back."""
        if now.give_reason(reason, limit):
            self._stopping = self._loop.create_task(self._stop_command(now, reason))

    async def _stop_command(self, now: ShellCommand, reason: ExecStatus) -> None:
        for _ in range(_STOP_TRIES):
            self._commands.signal(self._leader, self._script.abort_signal, leader_only=True)
            await self._commands.kill_rest(now.id, shell=self._leader.id)
            await asyncio.wait({now.over}, timeout=_STOP_WAIT_S)
            if now.over.done():
                return
        self._why = f"it was killed because its command ({reason}) could not be ended alone"
        self._leader.kill(reason)
        await asyncio.wait({now.over})

    def _broke_off(self, why: str) -> None:
        """The wires brought something that is no report, or take nothing."""
        if not self._leader.done.done():
            self._why = self._why or why
            self._leader.kill(ExecStatus.CANCELLED)

    def _leader_ended(self, _: object) -> None:
        self._wires.read_reports()
        self._wires.close()
        if not self._ready.done():
            self._ready.set_result(None)
        now = self._current
        if now is not None and not now.over.done():
            self._take_output(now)
            now.over.set_result(None)

    def _ended(self, stdout: Output = Output(), stderr: Output = Output()) -> ShellEnded:  # noqa: B008
        result = self._leader.done.result() if self._leader.done.done() else None
        code, signal = (result.exit_code, result.signal) if result else (None, None)
        why = self._why
        if not why and signal is not None:
            why = f"it was killed by signal {signal}"
        if not why and code is not None:
            why = f"its process exited with code {code} (exit, or a program it was replaced by)"
        if not why and result is not None:
            why = f"it was ended: {result.status}"
        return ShellEnded(
            f"the shell is over: {why}; open another one",
            exit_code=code,
            signal=signal,
            stdout=stdout.kept,
            stderr=stderr.kept,
        )

    async def interrupt(self) -> None:
        now = self._current
        if now is not None and not now.over.done():
            # First the shell, so that it goes no further when its program has ended.
            self._commands.signal(self._leader, self._script.abort_signal, leader_only=True)
            self._commands.signal_in_shell(self._leader, now.id, signals.SIGINT)

    async def close(self) -> None:
        self._why = self._why or "it was closed"
        self._leader.kill(ExecStatus.CANCELLED)
        await asyncio.wait({self._leader.done})
        with contextlib.suppress(SandboxError):
            await self._commands.kill_rest(self._leader.id)


def check_command(command: str) -> bytes:
    """The bytes of a command's text. Raises `UserError`."""
    if not isinstance(command, str) or "\0" in command:
        raise UserError("command: must be text without NUL")
    try:
        text = os.fsencode(command)
    except UnicodeEncodeError as error:
        raise UserError(f"command: cannot be encoded ({error.reason})") from error
    if len(text) > MAX_COMMAND_BYTES:
        raise UserError(
            f"command: {len(text)} bytes, more than {MAX_COMMAND_BYTES}; write it to a file first"
        )
    return text
