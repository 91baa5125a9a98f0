"""The processes that make a box, as their supervisor holds them: the launcher and PID 1.

The launcher turned into bubblewrap, or it is the parent that an OCI runtime left PID 1 to.

What is known of PID 1 comes from the kernel (its host pid and uid by socket credentials, a
pidfd, the launcher's exit status), never from what it says. Killing PID 1 kills the box.
"""

import array
import asyncio
import contextlib
import os
import signal as signals
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from trialyard.core.errors import SandboxError
from trialyard.sandboxes import protocol
from trialyard.sandboxes.protocol import Reply

_WAIT_S = 5.0
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_CREDENTIALS = struct.Struct("iII")


class BoxProcess:
    """Started by the constructor; `ready` resolves when PID 1 answers.

    `on_reply` gets every later message; `on_end` is called once when PID 1 is gone or
    breaks the protocol. `upper` is the writable layer in the launcher's mounts, if any.
    """

    def __init__(
        self,
        argv: Sequence[str],
        uid: int,
        *,
        upper: Path | None,
        on_reply: Callable[[Reply], None],
        on_end: Callable[[str | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._uid = uid
        self._upper = upper
        self._on_reply = on_reply
        self._on_end = on_end
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.init_pid = self.init_pidfd = self.root_fd = self.layer_fd = -1
        """`layer_fd` is where what the box changes lies: the root, or an overlay's upper."""
        self._said = b""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._diagnostics, their_stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._control.setblocking(False)
            self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            # Standard descriptors first: they are never among the sources.
            self.launcher_pid = os.posix_spawn(
                argv[0],
                list(argv),
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, null, 1),
                    (os.POSIX_SPAWN_DUP2, their_stderr, 2),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), protocol.CONTROL_FD),
                ],
            )
        except BaseException:
            self._control.close()
            os.close(self._diagnostics)
            raise
        finally:
            os.close(null)
            os.close(their_stderr)
            theirs.close()
        self._launcher_pidfd = os.pidfd_open(self.launcher_pid)
        self._loop.add_reader(self._control.fileno(), self._on_readable)

    # --- messages -----------------------------------------------------------------------

    def send(self, parts: Sequence[bytes], fds: Sequence[int] = ()) -> None:
        """Send one message. Raises `BlockingIOError` when PID 1 does not keep up, `OSError`."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._control.sendmsg(parts, rights)

    def _on_readable(self) -> None:
        try:
            if not self.ready.done():
                message, ancillary, _, _ = self._control.recvmsg(256, 256)
                if message:
                    self._take_hello(message, ancillary)
                    return
            else:
                message = self._control.recv(256)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        reply = protocol.parse_reply(message)
        if not message:
            self._end(None)
        elif reply is None or reply.op == protocol.HELLO:
            self._end("its PID 1 broke the protocol")
        else:
            self._on_reply(reply)

    def _take_hello(self, message: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        """The first message carries PID 1's host pid and uid, as the kernel knows them."""
        reply = protocol.parse_reply(message)
        credentials = [data for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
        if reply is None or reply.op != protocol.HELLO or len(credentials) != 1:
            self._end("its PID 1 did not introduce itself")
            return
        pid, uid, _ = _CREDENTIALS.unpack(credentials[0])
        if uid != self._uid or reply.id != protocol.VERSION:
            self._end(f"its PID 1 has uid {uid} and protocol {reply.id}: wrong program")
            return
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        try:
            self.init_pid, self.init_pidfd = pid, os.pidfd_open(pid)
            self.root_fd = os.open(f"/proc/{pid}/root", _DIRECTORY)
            self.layer_fd = self.root_fd
            if self._upper is not None:
                # Outside the box's own namespaces: bubblewrap waits in those of the launcher.
                path = f"/proc/{self.launcher_pid}/root{self._upper}"
                self.layer_fd = os.open(path, _DIRECTORY)
        except OSError as error:
            self._end(f"its PID 1 is already gone ({error.strerror})")
            return
        self.ready.set_result(None)

    def _end(self, why: str | None) -> None:
        self._loop.remove_reader(self._control.fileno())
        self._on_end(why)

    def said(self) -> str:
        """What the launcher or its runtime wrote before PID 1 took over: why they failed."""
        if self._diagnostics >= 0:
            with contextlib.suppress(BlockingIOError):
                self._said += os.read(self._diagnostics, 4096)
        return self._said.decode("utf-8", "replace").strip()

    # --- the end ------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL to PID 1, or to the launcher while there is no PID 1."""
        pidfd = self.init_pidfd if self.init_pidfd >= 0 else self._launcher_pidfd
        if pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signals.pidfd_send_signal(pidfd, signals.SIGKILL)

    async def wait(self) -> int | None:
        """Wait status of the launcher, which outlives PID 1; None if it will not end."""
        self._loop.remove_reader(self._control.fileno())
        status = self._reap()
        if status is not None:
            return status
        ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._launcher_pidfd, _resolve, ended)
        try:
            await asyncio.wait({ended}, timeout=_WAIT_S)
            if not ended.done():
                os.kill(self.launcher_pid, signals.SIGKILL)
                await asyncio.wait({ended}, timeout=_WAIT_S)
        finally:
            self._loop.remove_reader(self._launcher_pidfd)
        return self._reap()

    def _reap(self) -> int | None:
        pid, status = os.waitpid(self.launcher_pid, os.WNOHANG)
        return status if pid else None

    def close(self) -> None:
        """Close every descriptor but those of the files; after `wait`."""
        if not self.ready.done():
            self.ready.set_exception(SandboxError("the box ended before it was ready"))
            self.ready.exception()
        self.said()
        self._control.close()
        for fd in (self.init_pidfd, self._launcher_pidfd, self._diagnostics):
            if fd >= 0:
                os.close(fd)
        self.init_pidfd = self._launcher_pidfd = self._diagnostics = -1

    def close_files(self) -> None:
        """Let go of the box's file system, which lives on as long as it is held. Idempotent."""
        for fd in {self.root_fd, self.layer_fd} - {-1}:
            os.close(fd)
        self.root_fd = self.layer_fd = -1


def outside_evidence(wait_status: int | None) -> str:
    """What the launcher's end says about a box that nobody here ended; empty for nothing.

    Inside its namespace nothing can kill PID 1, so a SIGKILL came from the host.
    """
    if wait_status is None:
        return "its launcher does not end although it was killed"
    if os.WIFSIGNALED(wait_status):
        return f"its launcher was killed from outside by signal {os.WTERMSIG(wait_status)}"
    if os.WEXITSTATUS(wait_status) == 128 + signals.SIGKILL:
        return "PID 1 was killed from outside (inside, nothing can kill it)"
    return ""


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
