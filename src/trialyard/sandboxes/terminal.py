"""A pseudo-terminal of a box, held by its supervisor.

The pair comes from the box's own devpts, so programs inside can name it. Whatever lies at that
path is checked to be the terminal multiplexer, and the other end is taken from the pair
itself, not by a path. What the box writes is bytes to us: our end is never a controlling
terminal, never blocks, and obeys no escape sequence.
"""

import contextlib
import fcntl
import os
import stat
import struct
import termios

from trialyard.core.errors import SandboxError
from trialyard.core.process import PtySize
from trialyard.sandboxes.identity import RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS, open_in_root
from trialyard.sandboxes.protocol import FLAG_STDIN, FLAG_TERMINAL
from trialyard.sandboxes.streams import Ends

END_OF_FILE = b"\x04"
_PTMX = "/dev/pts/ptmx"
_MULTIPLEXER = os.makedev(5, 2)
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441


def terminal_ends(root_fd: int, size: PtySize) -> Ends:
    """A new terminal below `root_fd`: one end is stdin, stdout and stderr of a command.

    To be called while acting as the box's user, whose terminal it will be. Raises
    `SandboxError`.
    """
    ends = Ends(flags=FLAG_STDIN | FLAG_TERMINAL)
    try:
        ends.stdout_fd = open_in_root(
            root_fd, _PTMX, os.O_RDWR, resolve=RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS
        )
        status = os.fstat(ends.stdout_fd)
        if not stat.S_ISCHR(status.st_mode) or status.st_rdev != _MULTIPLEXER:
            raise SandboxError(f"{_PTMX} of the box is no terminal multiplexer")
        fcntl.ioctl(ends.stdout_fd, _TIOCSPTLCK, struct.pack("i", 0))
        resize_terminal(ends.stdout_fd, size)
        flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
        ends.given.append(fcntl.ioctl(ends.stdout_fd, _TIOCGPTPEER, flags))
        ends.given += [os.dup(ends.given[0]) for _ in range(2)]
        ends.stdin_fd = os.dup(ends.stdout_fd)
    except OSError as error:
        ends.close()
        if isinstance(error, SandboxError):
            raise
        raise SandboxError(f"no terminal in the box: {error.strerror}") from error
    except SandboxError:
        ends.close()
        raise
    return ends


def resize_terminal(fd: int, size: PtySize) -> None:
    """Its programs get SIGWINCH."""
    with contextlib.suppress(OSError):  # it has gone meanwhile
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
