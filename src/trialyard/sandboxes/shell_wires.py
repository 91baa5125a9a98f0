"""The descriptors between a shell and its supervisor: script, status, and the text to run."""

import asyncio
import os
from collections.abc import Callable

from trialyard.core.errors import ResourceExhausted
from trialyard.sandboxes.shell_script import Report, parse_report
from trialyard.sandboxes.streams import Ends

_MAX_LINE_BYTES = 256


class ShellWires:
    """Ours are never waited for; what comes in on the status pipe may be anything."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_report: Callable[[Report], None],
        on_nonsense: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._on_report = on_report
        self._on_nonsense = on_nonsense
        self._unread = b""
        self._script = self._status = self._text = -1

    def give(self, ends: Ends, first_fd: int) -> None:
        """Make them; the shell's ends are added to those that it is given."""
        try:
            theirs, self._script = os.pipe2(os.O_CLOEXEC)
            ends.give(theirs)
            self._status, theirs = os.pipe2(os.O_CLOEXEC)
            ends.give(theirs)
            self._text = os.memfd_create("command")
            # Its own program's user may read it, and cannot open it for writing.
            os.fchmod(self._text, 0o444)
            ends.given.append(os.open(f"/proc/self/fd/{self._text}", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            self.close()
            raise ResourceExhausted(
                f"no descriptors for a shell ({error.strerror}); raise the supervisor's limit on "
                "open files (ulimit -n) or run fewer shells at once"
            ) from error
        ends.first_extra_fd = first_fd
        os.set_blocking(self._script, False)
        os.set_blocking(self._status, False)
        self._loop.add_reader(self._status, self.read_reports)

    def put_text(self, text: bytes) -> None:
        os.ftruncate(self._text, 0)
        at = 0
        while at < len(text):
            at += os.pwrite(self._text, memoryview(text)[at:], at)

    def write(self, lines: str) -> None:
        """Raises `OSError` when the shell takes no more, `BlockingIOError` included."""
        data = lines.encode()
        if os.write(self._script, data) != len(data):
            raise BlockingIOError("the shell does not read its script")

    def read_reports(self) -> None:
        """Take what is there now."""
        while self._status >= 0:
            try:
                data = os.read(self._status, 4096)
            except BlockingIOError:
                return
            if not data:
                self._close_status()
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                report = parse_report(line)
                if report is None:
                    self._nonsense()
                    return
                self._on_report(report)
            if len(self._unread) > _MAX_LINE_BYTES:
                self._nonsense()

    def _nonsense(self) -> None:
        self._close_status()
        self._on_nonsense("its status was not what our script writes")

    def _close_status(self) -> None:
        if self._status >= 0:
            self._loop.remove_reader(self._status)
            os.close(self._status)
            self._status = -1

    def close(self) -> None:
        self._close_status()
        for fd in (self._script, self._text):
            if fd >= 0:
                os.close(fd)
        self._script = self._text = -1
