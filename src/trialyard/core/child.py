"""Child processes of our own: bound to their parent, and how they ended in words."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent (a process id) dies (Linux).

    The kernel means the thread that started the child, so start children on a thread
    that lives as long as they should.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def ending(code: int | None) -> str:
    """How a process ended, from its return code as `subprocess` gives it."""
    if code is None:
        return "still running"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
