"""Commands that outlive the call which started them: processes and shells of a box.

Invariants: both end with their box at the latest; how a process or a command of a shell ended
is an `ExecResult`, a box that vanished is `SandboxLost`.
"""

from dataclasses import dataclass
from typing import Protocol

from trialyard.core.errors import UserError
from trialyard.core.sandbox import ExecResult, OutputCallback

MAX_PTY_SIDE = 4096


@dataclass(frozen=True, slots=True)
class PtySize:
    """Size of a terminal in characters. Raises `UserError` outside of 1 to 4096."""

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= MAX_PTY_SIDE:
                raise UserError(f"pty {name} {value!r}: must be from 1 to {MAX_PTY_SIDE}")


class Process(Protocol):
    """A command that runs in the background, made by `Sandbox.start`.

    Its limits on output and idle time hold as for `Sandbox.run`. Every method may be called
    after its end. On a terminal stdout is all that is shown, and stderr is empty.
    """

    @property
    def id(self) -> int:
        """Its number in its box."""

    @property
    def running(self) -> bool:
        """True until `wait` has something to return."""

    def output(self) -> tuple[bytes, bytes]:
        """stdout and stderr as far as they have been kept until now."""

    async def write(self, data: bytes) -> None:
        """Send bytes to its stdin, or type them on its terminal; returns when they are in the
        pipe, so a program that does not read holds this up. Calls are served in turn.

        Raises `StdinClosed` when stdin was not asked for, was closed, or nobody reads it.
        """

    async def close_stdin(self) -> None:
        """End of file for the program; on a terminal, Ctrl-D. Closing twice is fine."""

    async def signal(self, number: int) -> None:
        """Send a signal to the leader's process group; nothing happens once it has ended.

        Raises `UserError` unless `number` is from 1 to 64.
        """

    async def kill(self) -> None:
        """Kill it and everything it started, daemons that outlived it too; status cancelled
        if it was still running. Returns when all are dead."""

    async def resize(self, size: PtySize) -> None:
        """Change the size of its terminal; programs get SIGWINCH. `UserError` without one."""

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        """How it ended; any number of calls, also at once.

        Raises `TimeoutError` after `timeout_s`, and the process runs on, as it does when the
        call is cancelled. Raises `SandboxLost` when the box went first.
        """


class Shell(Protocol):
    """A command interpreter that stays alive in a box, made by `Sandbox.shell`.

    Directory, variables, functions, options and background jobs last from one command to the
    next. What background jobs write while no command runs is dropped and counted.
    """

    @property
    def alive(self) -> bool:
        """False once it has ended, or could not be saved at a time-out."""

    @property
    def dropped_bytes(self) -> int:
        """Output that belonged to no command."""

    async def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        on_output: OutputCallback | None = None,
    ) -> ExecResult:
        """Run one command text and return when the shell is ready for the next.

        Calls at the same time are served one after the other. At a time-out, or when the call
        is cancelled, what the command started is killed; the shell lives on if it can. Raises
        `ShellEnded` when the shell itself ended (exit, exec, killed), now or before;
        `SandboxLost`; `UserError` for NUL or a text of more than 16 MiB.
        """

    async def interrupt(self) -> None:
        """Ctrl-C for the command that runs now, if one does: its programs get SIGINT, and once
        they have ended the rest of its text is not run."""

    async def close(self) -> None:
        """Kill the shell and all that it started. Idempotent; never raises."""
