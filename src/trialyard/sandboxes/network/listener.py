"""A listening socket inside a box's network namespace, served on the host.

A socket belongs to the namespace that it was made in. So a thread enters the namespace of the
box's PID 1, makes the socket, and ends; nothing else of the supervisor is ever inside. A box has
a bounded number of connections, and a bounded rate of new ones: what exceeds either waits in
the kernel's short queue.
"""

import asyncio
import ctypes
import errno
import os
import resource
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import ClassVar

from trialyard.core.errors import SandboxError, SandboxLost, UserError
from trialyard.sandboxes.network.door import bound_buffers

LOOPBACK = "127.0.0.1"
CONNECTIONS_PER_BOX = 64
_CLONE_NEWNET = 0x40000000
_BACKLOG = 64
_ACCEPTS_PER_S = 200.0
_ACCEPT_BURST = 64.0
_ALWAYS = 4
_BUFFER_BYTES = 64 << 10
_FULL_S = 0.02
"""Look this often whether a connection may be accepted again."""
_TROUBLE_S = 0.5
"""Wait this long when the host has no descriptor or memory for another connection."""


async def listen_inside(init_pidfd: int, port: int) -> socket.socket:
    """A socket that listens on 127.0.0.1:`port` in the network namespace of a process.

    Raises `UserError` when the port is in use, `SandboxLost` when the process is gone,
    `SandboxError` when the host refuses.
    """
    loop = asyncio.get_running_loop()
    made: asyncio.Future[socket.socket] = loop.create_future()

    def work() -> None:
        try:
            listener = _listen(init_pidfd, port)
        except OSError as error:
            loop.call_soon_threadsafe(_fail, made, error)
        else:
            loop.call_soon_threadsafe(_hand_over, made, listener)

    thread = threading.Thread(target=work, name="box-listen", daemon=True)
    thread.start()
    try:
        return await made
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port}: already in use inside the box") from None
        if error.errno == errno.ESRCH:
            raise SandboxLost("the box is gone: its PID 1 ended") from None
        raise SandboxError(f"cannot listen inside the box: {error.strerror or error}") from error
    finally:
        thread.join()


def _listen(init_pidfd: int, port: int) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(init_pidfd, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        bound_buffers(listener, _BUFFER_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _hand_over(made: "asyncio.Future[socket.socket]", listener: socket.socket) -> None:
    if made.done():
        listener.close()
    else:
        made.set_result(listener)


def _fail(made: "asyncio.Future[socket.socket]", error: OSError) -> None:
    if not made.done():
        made.set_exception(error)


def _most_connections() -> int:
    """Of all boxes together: each takes two descriptors, and half of them is for other things."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4


class Room:
    """How many connections a box may have, over all of its listeners.

    Descriptors belong to the whole process, so all boxes together are bounded too; but a few
    connections each box may always have, whatever the others do.
    """

    _taken_by_all: ClassVar[int] = 0

    def __init__(self, most: int = CONNECTIONS_PER_BOX, most_of_all: int | None = None) -> None:
        self._most = most
        self._most_of_all = most_of_all
        self.taken = 0

    def take(self) -> bool:
        """A place for one connection, if there is one now."""
        if self.taken >= self._most:
            return False
        if self.taken >= _ALWAYS:
            limit = _most_connections() if self._most_of_all is None else self._most_of_all
            if Room._taken_by_all >= limit:
                return False
        self.taken += 1
        Room._taken_by_all += 1
        return True

    def give_back(self) -> None:
        self.taken -= 1
        Room._taken_by_all -= 1


class Listener:
    """Accepts connections of a box and serves each in a task. Owns the socket."""

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], Awaitable[None]],
        room: Room,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = listener
        self._serve = serve
        self._room = room
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tokens, self._counted_s = _ACCEPT_BURST, self._loop.time()
        self._closed = False
        self._watch()

    def _watch(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket.fileno(), self._on_ready)

    def _pause(self, wait_s: float) -> None:
        """Accept nothing for a while."""
        self._loop.remove_reader(self._socket.fileno())
        self._timer = self._loop.call_later(wait_s, self._watch)

    def _on_ready(self) -> None:
        """Accept one connection per turn of the loop."""
        now_s = self._loop.time()
        grown = self._tokens + (now_s - self._counted_s) * _ACCEPTS_PER_S
        self._tokens, self._counted_s = min(_ACCEPT_BURST, grown), now_s
        if self._tokens < 1:
            self._pause((1 - self._tokens) / _ACCEPTS_PER_S)
        elif not self._room.take():
            self._pause(_FULL_S)
        elif (connection := self._accept()) is None:
            self._room.give_back()
        else:
            self._tokens -= 1
            task = self._loop.create_task(self._run(connection))
            self._tasks.add(task)
            task.add_done_callback(self._on_done)
            # Not in the task: one that is cancelled before it began runs nothing of its own.
            task.add_done_callback(lambda _: connection.close())

    def _accept(self) -> socket.socket | None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        except OSError:
            self._pause(_TROUBLE_S)
            return None
        connection.setblocking(False)
        return connection

    async def _run(self, connection: socket.socket) -> None:
        await self._serve(connection)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.give_back()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "serving a box's connection failed", "exception": error, "task": task}
            )

    async def close(self) -> None:
        """End every connection and stop listening. Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            if self._timer is not None:
                self._timer.cancel()
            self._socket.close()
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
