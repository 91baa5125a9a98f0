"""Moving bytes between a box and the host: one chunk at a time, metered, never piled up.

Every chunk passes the box's `Meter` before it is sent on, so a box has at most one chunk per
turn of the event loop and no more than its bandwidth. What a peer does not take stays in the
kernel's bounded socket buffers.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

_CHUNK_BYTES = 65_536
_SMALLEST_CHUNK_BYTES = 512
_BURST_S = 0.1
"""A box that was quiet may send this much of its bandwidth at once."""
LINGER_S = 1.0
_LINGER_BYTES = 1 << 20


class FlowError(Exception):
    """A peer broke the agreed bounds: too long a head, or an end in the middle."""


class Meter:
    """The bandwidth of one box over all of its connections, both directions together."""

    def __init__(self, bytes_per_s: int | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._turn = asyncio.Lock()
        self._due_s = 0.0
        self.throttled = 0
        """How often a chunk had to wait for bandwidth."""
        burst = _CHUNK_BYTES if bytes_per_s is None else int(bytes_per_s * _BURST_S)
        self.chunk_bytes = max(_SMALLEST_CHUNK_BYTES, min(_CHUNK_BYTES, burst))

    async def spend(self, num_bytes: int) -> None:
        """Wait until these bytes may pass; callers are served in the order they came."""
        async with self._turn:
            wait_s = 0.0
            if self._bytes_per_s is not None:
                now_s = asyncio.get_running_loop().time()
                self._due_s = max(self._due_s, now_s - _BURST_S) + num_bytes / self._bytes_per_s
                wait_s = max(0.0, self._due_s - now_s)
                self.throttled += wait_s > 0
            await asyncio.sleep(wait_s)


class Wire:
    """A connected socket with what was read ahead of need. Owns the socket."""

    def __init__(self, connection: socket.socket, meter: Meter) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._meter = meter
        self._ahead = b""
        self._ended = False
        self.received_bytes = 0
        self.sent_bytes = 0

    async def peek(self) -> bytes:
        """What comes next, which stays there; empty at the end."""
        if not self._ahead:
            await self._fill()
        return self._ahead

    async def some(self, most: int = _CHUNK_BYTES) -> bytes:
        """The next bytes, at most `most`; empty at the end."""
        if not self._ahead:
            await self._fill(most)
        chunk, self._ahead = self._ahead[:most], self._ahead[most:]
        return chunk

    async def exactly(self, num_bytes: int) -> bytes:
        """Raises `FlowError` when the end comes first."""
        while len(self._ahead) < num_bytes:
            if not await self._fill(num_bytes - len(self._ahead)):
                raise FlowError("the connection ended in the middle of a message")
        chunk, self._ahead = self._ahead[:num_bytes], self._ahead[num_bytes:]
        return chunk

    async def until(self, mark: bytes, most: int) -> bytes:
        """Everything up to and with `mark`; empty if the end comes before any byte.

        Raises `FlowError` when `most` bytes do not hold it or the end comes first.
        """
        start = 0
        while (found := self._ahead.find(mark, start)) < 0 or found + len(mark) > most:
            if len(self._ahead) >= most:
                raise FlowError(f"more than {most} bytes before the end of a line or a head")
            start = max(0, len(self._ahead) - len(mark) + 1)
            if not await self._fill():
                if not self._ahead:
                    return b""
                raise FlowError("the connection ended in the middle of a line or a head")
        end = found + len(mark)
        part, self._ahead = self._ahead[:end], self._ahead[end:]
        return part

    async def _fill(self, most: int = _CHUNK_BYTES) -> bool:
        if self._ended:
            return False
        limit = min(self._meter.chunk_bytes, max(most, _SMALLEST_CHUNK_BYTES))
        data = await self._loop.sock_recv(self._socket, limit)
        if not data:
            self._ended = True
            return False
        self.received_bytes += len(data)
        await self._meter.spend(len(data))
        self._ahead += data
        return True

    async def send(self, data: bytes) -> None:
        """Returns when the kernel has all of it."""
        await self._loop.sock_sendall(self._socket, data)
        self.sent_bytes += len(data)

    def end(self) -> None:
        """No more bytes in this direction."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def linger(self) -> None:
        """Let the peer read the last answer: closing with unread input would drop it."""
        self.end()
        self._ahead = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                most = self.received_bytes + _LINGER_BYTES
                while self.received_bytes < most and await self._fill():
                    self._ahead = b""

    def close(self) -> None:
        """No task may be waiting on this wire any more."""
        self._ahead = b""
        self._socket.close()


class Clock:
    """Ends an exchange that stands still for `idle_s` or takes `total_s`, by `TimeoutError`."""

    def __init__(self, idle_s: float | None, total_s: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._end_s = None if total_s is None else self._loop.time() + total_s
        self._timeout = asyncio.timeout_at(self._next())

    def _next(self) -> float | None:
        if self._idle_s is None:
            return self._end_s
        idle_s = self._loop.time() + self._idle_s
        return idle_s if self._end_s is None else min(idle_s, self._end_s)

    def moved(self) -> None:
        """Something passed: the idle time starts anew."""
        if not self._timeout.expired():
            self._timeout.reschedule(self._next())

    async def __aenter__(self) -> "Clock":
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)


async def pump(source: Wire, sink: Wire, moved: Callable[[], None]) -> None:
    """Everything from one to the other, then the end of that direction.

    Who takes no more may still have something to say, so that ends this direction only.
    """
    while chunk := await source.some():
        try:
            await sink.send(chunk)
        except (BrokenPipeError, ConnectionResetError):
            return
        moved()
    sink.end()


async def join(one: Wire, other: Wire, clock: Clock) -> None:
    """Both directions until both have ended. Raises `OSError` or `TimeoutError`."""
    async with clock:
        await both(pump(one, other, clock.moved), pump(other, one, clock.moved))


async def both(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all; the first that fails ends the others, and its error is raised as it is."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
