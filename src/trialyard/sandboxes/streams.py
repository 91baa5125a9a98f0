"""Pipes between a command and its supervisor: drained at once, kept up to a bound.

Output beyond the bound is dropped and counted, so a flood costs time but no memory, and a
program that nobody reads from never blocks.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable

_CHUNK_BYTES = 65_536
_CHUNKS_PER_WAKEUP = 16
"""Bounds how long one flooding box may hold the event loop."""


class OutputStream:
    """One output pipe. `on_data` is called for every chunk that is kept."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
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
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        loop.add_reader(self._read_fd, self._on_readable)

    @property
    def kept(self) -> bytes:
        return b"".join(self._kept)

    @property
    def ended(self) -> bool:
        """True when every writer closed its end."""
        return self._read_fd < 0

    def close_write_end(self) -> None:
        """The command has its own copy now."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def drain(self) -> None:
        """Take all that is in the pipe now."""
        while self._read_once():
            pass

    def _on_readable(self) -> None:
        for _ in range(_CHUNKS_PER_WAKEUP):
            if not self._read_once():
                break
        if self.ended:
            self._on_end()

    def _read_once(self) -> bool:
        """Read one chunk; False when there is no more for now."""
        if self._read_fd < 0:
            return False
        try:
            chunk = os.read(self._read_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._close_read_end()
            return False
        self.total_bytes += len(chunk)
        room = self._keep_bytes - self._kept_bytes
        kept = chunk[:room] if len(chunk) > room else chunk
        if kept:
            self._kept.append(kept)
            self._kept_bytes += len(kept)
        self._on_chunk(kept)
        return True

    def _close_read_end(self) -> None:
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1

    def close(self) -> None:
        self._close_read_end()
        self.close_write_end()


class InputStream:
    """Feeds bytes to a command's stdin without ever waiting for a program that does not read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        self._loop = loop
        self._rest = memoryview(data)
        self.read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write_fd, False)
        self._feed()
        if self._write_fd >= 0:
            loop.add_writer(self._write_fd, self._feed)

    def _feed(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._write_fd, self._rest) :]
        except BlockingIOError:
            return
        except OSError:
            pass  # EPIPE: the program does not want the rest
        self._close_write_end()

    def close_read_end(self) -> None:
        """The command has its own copy now."""
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1

    def _close_write_end(self) -> None:
        if self._write_fd >= 0:
            with contextlib.suppress(ValueError):
                self._loop.remove_writer(self._write_fd)
            os.close(self._write_fd)
            self._write_fd = -1

    def close(self) -> None:
        self._close_write_end()
        self.close_read_end()
