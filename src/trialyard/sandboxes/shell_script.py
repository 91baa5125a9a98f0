"""What a shell of a box is told, so that it can be kept for many commands.

The interpreter reads its script from a pipe, line by line, and so never shows a prompt. For
each command it sources a text that the supervisor has put into a memory file, then writes
status and options to a second pipe. Whatever a text does (unclosed quotes, ``exec >file``,
traps, functions, ``set -u``), the next line of the script is its own. The descriptors of script,
status and text are closed while a text runs: a redirection of the ``source`` itself saves them
where programs do not inherit them, and restores them after.

bash runs as an interactive shell that reads a script, because only an interactive one survives
its user's mistakes; ``set -e`` is off outside of texts, and inside a trap on ERR turns it into a
return from the text. A text is stopped by a signal that nobody else uses, trapped likewise.
sh has no such trap: there ``set -e`` ends the shell. After a mistake it forgets what it has
read of its script, so it is asked again now and then until it answers.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from trialyard.sandboxes.protocol import LOCKS_MARKER

BASH_ABORT_SIGNAL = 61
"""SIGRTMAX - 3, which the C library leaves alone."""
_ABORT = "__trialyard"
_REPORT = re.compile(rb"(\d{1,10}) (\d{1,3}) ([a-zA-Z]{0,32}) ([ei]?)")


@dataclass(frozen=True, slots=True)
class Report:
    """What a shell says after a command."""

    id: int
    exit_code: int
    flags: str
    """As ``$-``, before they were taken back."""
    abort: str
    """e: errexit ended the text; i: the supervisor did; else empty."""


def parse_report(line: bytes) -> Report | None:
    """One line of the status pipe; None for anything else, which no shell of ours writes."""
    match = _REPORT.fullmatch(line)
    if match is None or int(match[2]) > 255:
        return None
    return Report(int(match[1]), int(match[2]), match[3].decode(), match[4].decode())


FIRST = Report(0, 0, "", "")
"""The state of a new shell."""


class ShellScript(Protocol):
    """How one kind of interpreter is driven."""

    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def first_fd(self) -> int:
        """Script, status and text are this descriptor and the next two."""
        ...

    @property
    def abort_signal(self) -> int:
        """Makes the interpreter give up a text, once what it waits for is dead."""
        ...

    @property
    def must_be_asked_again(self) -> bool: ...
    def opening(self) -> str:
        """The first lines; answered by a report for 0."""
        ...

    def text(self, command: bytes, id: int, last: Report) -> bytes:
        """The memory file's content for a command."""
        ...

    def source(self, id: int) -> str:
        """Script lines that run the memory file."""
        ...

    def report(self, id: int) -> str:
        """A script line that is reached when the command is over."""
        ...


def _restored(last: Report) -> str:
    """Options that are off between texts."""
    flags = {flag for flag in "exv" if flag in last.flags}
    return "".join(sorted(flags | ({"e"} if last.abort == "e" else set())))


@dataclass(frozen=True, slots=True)
class BashScript:
    """For bash 4.4 and later."""

    first_fd: int
    abort_signal: int = BASH_ABORT_SIGNAL
    must_be_asked_again: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        return ("bash", "--norc", "--noprofile", "-i", f"/proc/self/fd/{self.first_fd}")

    def opening(self) -> str:
        on_error = (
            f"{{ {_ABORT}_code=$?; [[ $BASHPID == $$ && ( $- == *e* || ${{{_ABORT}-}} ) ]] && "
            f"{{ {_ABORT}=${{{_ABORT}:-e}}; builtin set +e; builtin return ${_ABORT}_code; }}; "
            "} 2>/dev/null"
        )
        return (
            f"exec {self.first_fd}<&-; set +H +m +o history -ET\n"
            f'{_ABORT}_status() {{ builtin return "$1"; }}\n'
            f"trap '{on_error}' ERR\n"
            f"trap '{{ {_ABORT}=i; builtin return 130; }} 2>/dev/null' {self.abort_signal}\n"
            "trap : INT\n"
            f"BASH_ARGV0=bash {_ABORT}=\n"
        ) + self.report(0)

    def text(self, command: bytes, id: int, last: Report) -> bytes:
        steps = [
            f"exec {self.first_fd + 3}<&-",  # by `builtin` it would not last
            f"builtin ulimit -x {LOCKS_MARKER - id} 2>/dev/null",
        ]
        flags = _restored(last)
        if flags:
            steps.append(f"builtin set -{flags}")
        if last.exit_code and "e" not in flags:
            steps.append(f"{{ {_ABORT}_status {last.exit_code}; }} 2>/dev/null")
        return "; ".join(steps).encode() + b"\n" + command + b"\n"

    def source(self, id: int) -> str:
        status, text = self.first_fd + 1, self.first_fd + 2
        return (
            f"{_ABORT}=; builtin . /proc/self/fd/{text + 1} {text + 1}<&{text} {text}<&- "
            f"{status}>&-; {self.report(id)}{self.report(id)}"
        )

    def report(self, id: int) -> str:
        return (
            f'{{ builtin printf \'{id} %d %s %s\\n\' "$?" "$-" "${_ABORT}" '
            f">&{self.first_fd + 1}; builtin set +exv -ET; }} >/dev/null 2>&1\n"
        )


@dataclass(frozen=True, slots=True)
class PosixScript:
    """For the sh of images without bash (dash, busybox): one digit names a descriptor."""

    first_fd: int = 6
    abort_signal: int = 2
    must_be_asked_again: bool = True

    @property
    def argv(self) -> tuple[str, ...]:
        return ("sh", "-i", f"/proc/self/fd/{self.first_fd}")

    def opening(self) -> str:
        first = f"exec {self.first_fd}<&-; PS1= PS2=; set +m\n"
        return f'{first}{_ABORT}_status() {{ return "$1"; }}\n{self.report(0)}'

    def text(self, command: bytes, id: int, last: Report) -> bytes:
        marker = LOCKS_MARKER - id
        steps = [
            f"exec {self.first_fd + 3}<&-",
            f"{{ ulimit -w {marker} || ulimit -x {marker}; }} 2>/dev/null",
        ]
        flags = _restored(last)
        if flags:
            steps.append(f"set -{flags}")
        if "e" not in flags:
            steps.append(f"{{ {_ABORT}_status {last.exit_code}; }} 2>/dev/null")
        return "; ".join(steps).encode() + b"\n" + command + b"\n"

    def source(self, id: int) -> str:
        status, text = self.first_fd + 1, self.first_fd + 2
        return (
            f". /proc/self/fd/{text + 1} {text + 1}<&{text} {text}<&- {status}>&-; "
            f"{self.report(id)}"
        )

    def report(self, id: int) -> str:
        return (
            f'{{ printf \'{id} %d %s \\n\' "$?" "$-" >&{self.first_fd + 1}; '
            "set +exv; PS1=; } >/dev/null 2>&1\n"
        )
