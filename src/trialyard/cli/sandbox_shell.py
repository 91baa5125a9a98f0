"""``trialyard sandbox shell``: one live shell in a fresh box, a line at a time.

Each line is one command text, so what the shell would read on several lines goes onto one.
A line is asked for only when the shell is ready for it.
"""

import argparse
import asyncio
import os
import signal
import sys

from trialyard.cli.command import Commands, add_command
from trialyard.cli.sandbox_files import give
from trialyard.cli.sandbox_flags import (
    add_box_flags,
    command_user,
    environment,
    limits_of,
    open_box,
)
from trialyard.cli.sandbox_output import (
    EXIT_INFRASTRUCTURE,
    exit_code,
    infrastructure_fault,
    stream_output,
)
from trialyard.core.errors import SandboxError, ShellEnded, UserError
from trialyard.core.process import Shell
from trialyard.core.sandbox import ExecStatus, Limits

EXAMPLES = """\
  trialyard sandbox shell
  printf 'cd /tmp\\npwd\\n' | trialyard sandbox shell --memory 128M --timeout 5
"""
_PROMPT = "box$ "
_CHUNK_BYTES = 1 << 16
_MAX_LINE_BYTES = 16 << 20


def register(actions: Commands) -> None:
    parser = add_command(
        actions,
        "shell",
        "run the lines of stdin, one after the other, in one shell of a fresh box",
        examples=EXAMPLES,
        handler=shell_command,
    )
    add_box_flags(parser)


def shell_command(arguments: argparse.Namespace) -> int:
    """The code of the shell if it ended by itself, else that of its last command."""
    limits = limits_of(arguments)
    try:
        return asyncio.run(_session(arguments, limits))
    except SandboxError as error:
        return infrastructure_fault(error)


async def _session(arguments: argparse.Namespace, limits: Limits) -> int:
    env = environment(arguments)
    async with open_box(arguments, limits) as sandbox:
        user = command_user(arguments)
        if user is not None:
            await give(sandbox, user, [arguments.workdir, "/out"])
        shell = await sandbox.shell(env=env, user=user)
        try:
            with _Interrupts(shell):
                return await _serve(shell, arguments.timeout)
        finally:
            await shell.close()


async def _serve(shell: Shell, timeout_s: float) -> int:
    """Run lines until they end, or the shell does."""
    lines = _Lines(sys.stdin.fileno())
    code = 0
    while True:
        if sys.stdin.isatty():
            print(_PROMPT, end="", file=sys.stderr, flush=True)
        line = await lines.take()
        if line is None:
            return code
        try:
            result = await shell.run(
                os.fsdecode(line), timeout_s=timeout_s, on_output=stream_output
            )
        except UserError as error:
            print(f"trialyard: {error}", file=sys.stderr)
            code = 2
            continue
        except ShellEnded as ended:
            return _code_of_end(ended)
        code = exit_code(result)
        if result.status is not ExecStatus.EXITED:
            hit = f" ({', '.join(sorted(result.limits_hit))})" if result.limits_hit else ""
            print(f"trialyard: the command ended: {result.status}{hit}", file=sys.stderr)
        if not shell.alive:
            return code


def _code_of_end(ended: ShellEnded) -> int:
    if ended.exit_code is not None:
        return ended.exit_code
    print(f"trialyard: {ended}", file=sys.stderr)
    return 128 + ended.signal if ended.signal is not None else EXIT_INFRASTRUCTURE


class _Interrupts:
    """Ctrl-C goes to the command that runs, and ends nothing else."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._loop = asyncio.get_running_loop()
        self._sent: set[asyncio.Task[None]] = set()

    def __enter__(self) -> None:
        self._loop.add_signal_handler(signal.SIGINT, self._send)

    def __exit__(self, *_: object) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)

    def _send(self) -> None:
        task = self._loop.create_task(self._shell.interrupt())
        self._sent.add(task)
        task.add_done_callback(self._sent.discard)


class _Lines:
    """The lines of a descriptor, one asked for at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._read = bytearray()
        self._at_end = False

    async def take(self) -> bytes | None:
        """The next line without its end, None after the last. Raises `UserError`."""
        return await asyncio.to_thread(self._take)

    def _take(self) -> bytes | None:
        seen = 0
        while (end := self._read.find(b"\n", seen)) < 0 and not self._at_end:
            seen = len(self._read)
            if seen > _MAX_LINE_BYTES:
                raise UserError(f"stdin: a line is longer than {_MAX_LINE_BYTES} bytes")
            data = os.read(self._descriptor, _CHUNK_BYTES)
            self._read += data
            self._at_end = not data
        if end < 0 and not self._read:
            return None
        stop = end if end >= 0 else len(self._read)
        line = bytes(self._read[:stop])
        del self._read[: stop + 1]
        return line
