"""Pipes between a command and its supervisor: drained at once, kept up to a bound.

Output beyond the bound is dropped and counted, so a flood costs time but no memory, and a
program that nobody reads from never blocks.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from trialyard.core.errors import ResourceExhausted, StdinClosed
from trialyard.sandboxes.meter import Output
from trialyard.sandboxes.protocol import FLAG_STDIN

_CHUNK_BYTES = 65_536
_CHUNKS_PER_WAKEUP = 16
"""Bounds how long one flooding box may hold the event loop. 1 MiB is also the most that a pipe
holds, so a drain of as much takes all that was written before it."""


@dataclass(slots=True)
class Ends:
    """The descriptors of one command: ours to talk to it, and those that it is given."""

    stdout_fd: int = -1
    stderr_fd: int = -1
    stdin_fd: int = -1
    given: list[int] = field(default_factory=list)
    flags: int = 0
    """What PID 1 must know of the given ones."""
    first_extra_fd: int = 0
    """Where those beyond the standard ones are placed."""

    def give(self, fd: int) -> None:
        """One more for the command. It may open it anew too, as /dev/stderr for instance."""
        self.given.append(fd)
        os.fchmod(fd, 0o666)

    def close_given(self) -> None:
        """The command has copies of its own now."""
        while self.given:
            os.close(self.given.pop())

    def close(self) -> None:
        """All of them; for ends that never got a command."""
        self.close_given()
        for fd in (self.stdout_fd, self.stderr_fd, self.stdin_fd):
            if fd >= 0:
                os.close(fd)
        self.stdout_fd = self.stderr_fd = self.stdin_fd = -1


def pipe_ends(*, with_stdin: bool) -> Ends:
    """Pipes for stdout, stderr and, if asked for, stdin. Raises `ResourceExhausted`."""
    ends = Ends(flags=FLAG_STDIN if with_stdin else 0)
    try:
        if with_stdin:
            theirs, ends.stdin_fd = os.pipe2(os.O_CLOEXEC)
            ends.give(theirs)
        ends.stdout_fd, theirs = os.pipe2(os.O_CLOEXEC)
        ends.give(theirs)
        ends.stderr_fd, theirs = os.pipe2(os.O_CLOEXEC)
        ends.give(theirs)
    except OSError as error:
        ends.close()
        raise ResourceExhausted(
            f"no pipes for a command ({error.strerror}); raise the supervisor's limit on open "
            "files (ulimit -n) or run fewer commands at once"
        ) from error
    return ends


class OutputStream:
    """One output pipe, or a terminal; owns `fd`. `on_chunk` gets what is kept of every chunk."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        *,
        keep_bytes: int,
        on_chunk: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._keep_bytes = keep_bytes
        self._on_chunk = on_chunk
        self._on_end = on_end
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self.total_bytes = 0
        self._fd = fd
        self._paused: asyncio.TimerHandle | None = None
        if fd >= 0:
            os.set_blocking(fd, False)
            loop.add_reader(fd, self._on_readable)

    @property
    def fd(self) -> int:
        """Its descriptor; -1 when it has ended."""
        return self._fd

    @property
    def output(self) -> Output:
        """What came until now."""
        return Output(b"".join(self._kept), self.total_bytes)

    @property
    def ended(self) -> bool:
        """True when every writer closed its end."""
        return self._fd < 0

    def restart(self) -> None:
        """What comes from now on counts anew."""
        self._kept.clear()
        self._kept_bytes = self.total_bytes = 0

    def pause(self, pause_s: float) -> None:
        """Read no more for a moment: whoever writes has to wait."""
        if self._fd >= 0 and self._paused is None:
            self._loop.remove_reader(self._fd)
            self._paused = self._loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._fd, self._on_readable)

    def drain(self) -> None:
        """Take all that is in the pipe now."""
        for _ in range(_CHUNKS_PER_WAKEUP + 1):
            if not self._read_once():
                break

    def _on_readable(self) -> None:
        for _ in range(_CHUNKS_PER_WAKEUP):
            if self._paused is not None or not self._read_once():
                break
        if self.ended:
            self._on_end()

    def _read_once(self) -> bool:
        """Read one chunk; False when there is no more for now."""
        if self._fd < 0:
            return False
        try:
            chunk = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # EIO: nobody has the terminal open any more
            chunk = b""
        if not chunk:
            self.close()
            return False
        self.total_bytes += len(chunk)
        room = self._keep_bytes - self._kept_bytes
        kept = chunk[:room] if len(chunk) > room else chunk
        if kept:
            self._kept.append(kept)
            self._kept_bytes += len(kept)
        self._on_chunk(kept)
        return True

    def close(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class InputStream:
    """Feeds bytes to a command without ever waiting for a program that does not read.

    Owns `fd`. It is closed after `data` unless it is to stay open for `write`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, data: bytes, *, stay_open: bool
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._rest = memoryview(data)
        self._stays_open = stay_open
        self._waiter: asyncio.Future[None] | None = None
        self._turn = asyncio.Lock()
        self._is_watched = False
        os.set_blocking(fd, False)
        self._feed()

    async def write(self, data: bytes) -> None:
        """Returns when all is in the pipe. Raises `StdinClosed`."""
        async with self._turn:
            while self._rest:
                await self._wait()
            if not self._stays_open or self._fd < 0:
                raise StdinClosed("the process takes no more bytes: its stdin is closed")
            self._rest = memoryview(bytes(data))
            self._feed()
            while self._rest:
                await self._wait()
            if self._fd < 0:
                raise StdinClosed("the process takes no more bytes: nobody reads its stdin")

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _feed(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BlockingIOError:
            self._watch()
            return
        except OSError:  # EPIPE: the program does not want the rest
            self._stays_open = False
        if not self._stays_open:
            self.close()
            return
        self._unwatch()
        self._wake()

    def _watch(self) -> None:
        if not self._is_watched:
            self._loop.add_writer(self._fd, self._feed)
            self._is_watched = True

    def _unwatch(self) -> None:
        if self._is_watched:
            self._loop.remove_writer(self._fd)
            self._is_watched = False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        """Close after what is still to be fed."""
        self._stays_open = False
        if not self._rest:
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(ValueError):
                self._unwatch()
            os.close(self._fd)
            self._fd = -1
        self._rest = memoryview(b"")
        self._wake()
