"""What a command in a box shows: its output as it comes, and an exit code for its end."""

import sys
from typing import Literal

from trialyard.core.errors import SandboxError, UserError
from trialyard.core.sandbox import ExecResult, ExecStatus

EXIT_CODES = {ExecStatus.TIMEOUT: 124, ExecStatus.OOM: 137, ExecStatus.OUTPUT_LIMIT: 123}
EXIT_INFRASTRUCTURE = 125


def infrastructure_fault(error: SandboxError) -> int:
    """Say that no result was obtained; the exit code for it. Bad input is raised again."""
    if isinstance(error, UserError):
        raise error
    print(f"trialyard: {type(error).__name__}: {error}", file=sys.stderr)
    return EXIT_INFRASTRUCTURE


def stream_output(name: Literal["stdout", "stderr"], data: bytes) -> None:
    """An `OutputCallback`."""
    stream = sys.stdout if name == "stdout" else sys.stderr
    stream.buffer.write(data)
    stream.buffer.flush()


def exit_code(result: ExecResult) -> int:
    """As shells say it: 128+n for a signal, 124 for a time-out."""
    if result.status is ExecStatus.SIGNALED:
        return 128 + (result.signal or 0)
    if result.status is ExecStatus.EXITED:
        return result.exit_code or 0
    return EXIT_CODES.get(result.status, EXIT_INFRASTRUCTURE)
