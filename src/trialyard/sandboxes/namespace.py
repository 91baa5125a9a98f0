"""`NamespaceSandbox`: a box made of Linux namespaces, one writable tmpfs, and cgroups.

bubblewrap makes the namespaces as an unprivileged uid that no other live box has; a small
program of ours is PID 1 inside and starts commands (native/init.c). The supervisor decides
from its own evidence: kernel-verified credentials, pidfds, cgroup counters. Killing PID 1
kills all of the box, so ending a box is one signal; the rest is tidying up.
"""

import array
import asyncio
import contextlib
import os
import posixpath
import signal as signals
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trialyard.core.errors import ResourceExhausted, SandboxLost, SandboxUnavailable, UserError
from trialyard.core.ids import new_id
from trialyard.core.image import Image
from trialyard.core.sandbox import ExecResult, ExecStatus, FileStat, Limits, OutputCallback
from trialyard.sandboxes import protocol
from trialyard.sandboxes.cgroups import BoxCgroup
from trialyard.sandboxes.command import Command, Counters
from trialyard.sandboxes.files import BoxFiles
from trialyard.sandboxes.host import SandboxHost
from trialyard.sandboxes.system_files import HOME
from trialyard.sandboxes.zygote import Zygote, start_kind

START_TIMEOUT_S = 20.0
_REMOVE_TIMEOUT_S = 10.0
_SEND_TIMEOUT_S = 10.0
DEFAULT_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/opt/trialyard/python/bin",
    "HOME": HOME,
    "LANG": "C.UTF-8",
}
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class _Request:
    """A checked command."""

    cwd: str
    argv: Sequence[str]
    env: Mapping[str, str]

    @property
    def body(self) -> bytes:
        return protocol.run_body(self.cwd, self.argv, self.env)


class NamespaceSandbox:
    """One live box on a `SandboxHost`. Made by `start`; see core/sandbox.py for the contract."""

    def __init__(
        self,
        host: SandboxHost,
        limits: Limits,
        workdir: str,
        uid: int,
        cgroup: BoxCgroup,
        *,
        image_has_host_system: bool,
    ) -> None:
        self._id = new_id("box")
        self._host = host
        self._limits = limits
        self._workdir = workdir
        self._uid = uid
        self._cgroup = cgroup
        self._loop = asyncio.get_running_loop()
        self._commands: dict[int, Command] = {}
        self._last_command = 0
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._deadline_s = float("inf")
        self._deadline: asyncio.TimerHandle | None = None
        self._first_cpu_us: int | None = None
        self._why_destroyed: str | None = None
        self._end: asyncio.Task[None] | None = None
        self._lost: SandboxLost | None = None
        self._control: socket.socket
        self._launcher_pid = self._launcher_pidfd = -1
        self._init_pid = self._init_pidfd = self._root_fd = -1
        self._files: BoxFiles
        self._forks = image_has_host_system
        self._overlapped = False
        self._host_evidence = ""
        self.leaked = False

    @classmethod
    async def start(
        cls, host: SandboxHost, image: Image, limits: Limits, workdir: str = "/work"
    ) -> "NamespaceSandbox":
        """A fresh box, ready for commands. Raises `SandboxUnavailable` if it cannot start."""
        plan = host.plan(image, limits, workdir)
        uid = host.owner.uids.take()
        try:
            cgroup = host.cgroups.create(f"u{uid}", limits)
        except OSError as error:
            host.owner.uids.give_back(uid)
            raise ResourceExhausted(f"no new cgroup for a box: {error}") from error
        box = cls(
            host,
            limits,
            posixpath.normpath(workdir),
            uid,
            cgroup,
            image_has_host_system=not image.lowers,
        )
        diagnostics = box._launch(plan.argv(cgroups=cgroup.joins, uid=uid))
        try:
            await asyncio.wait_for(asyncio.shield(box._ready), START_TIMEOUT_S)
        except (SandboxLost, TimeoutError) as error:
            await box.close()
            said = _read_all(diagnostics).decode("utf-8", "replace").strip()
            raise SandboxUnavailable(
                f"a box did not start: {said or error}. `trialyard doctor` checks this host."
            ) from error
        except BaseException:
            await box.close()
            raise
        finally:
            os.close(diagnostics)
        return box

    # --- starting -----------------------------------------------------------------------

    def _launch(self, argv: list[str]) -> int:
        """Spawn the launcher; returns the pipe on which it says why it fails."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        diagnostics, their_stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            # Standard descriptors first: they are never among the sources.
            self._launcher_pid = os.posix_spawn(
                argv[0],
                argv,
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, null, 1),
                    (os.POSIX_SPAWN_DUP2, their_stderr, 2),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), protocol.CONTROL_FD),
                ],
            )
            self._launcher_pidfd = os.pidfd_open(self._launcher_pid)
        finally:
            os.close(null)
            os.close(their_stderr)
            theirs.close()
        self._control = ours
        self._loop.add_reader(ours.fileno(), self._on_control)
        return diagnostics

    def _say_hello(self, message: bytes, ancillary: list[tuple[int, int, bytes]]) -> None:
        """The first message carries PID 1's host pid and uid, as the kernel knows them."""
        reply = protocol.parse_reply(message)
        credentials = [data for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
        if reply is None or reply.op != protocol.HELLO or len(credentials) != 1:
            self.destroy("its PID 1 did not introduce itself")
            return
        pid, uid, _ = _CREDENTIALS.unpack(credentials[0])
        if uid != self._uid or reply.id != protocol.VERSION:
            self.destroy(f"its PID 1 has uid {uid} and protocol {reply.id}: wrong program")
            return
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        try:
            self._init_pid = pid
            self._init_pidfd = os.pidfd_open(pid)
            self._root_fd = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self.destroy(f"its PID 1 is already gone ({error.strerror})")
            return
        self._files = BoxFiles(self._root_fd, self._uid, self._workdir)
        self._ready.set_result(None)

    def set_deadline(self) -> None:
        """From now on the box has `wall_s` to live."""
        self._deadline_s = self._loop.time() + self._limits.wall_s
        self._deadline = self._loop.call_later(self._limits.wall_s + 0.25, self._expire)

    def _expire(self) -> None:
        for command in list(self._commands.values()):
            command.kill(ExecStatus.TIMEOUT, "wall")
        self.destroy(f"its wall_s of {self._limits.wall_s} s ran out")

    # --- what a command sees of its box ---------------------------------------------------

    @property
    def id(self) -> str:
        return self._id

    @property
    def workdir(self) -> str:
        return self._workdir

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def host_uid(self) -> int:
        """The uid that the box's processes have on the host."""
        return self._uid

    @property
    def host_pid(self) -> int:
        """The host's pid of the box's PID 1."""
        return self._init_pid

    @property
    def alive(self) -> bool:
        return self._end is None

    def counters(self) -> Counters:
        group = self._cgroup
        return Counters(group.cpu_us(), group.oom_kills(), group.pids_refused())

    def peaks(self) -> tuple[int, int]:
        return self._cgroup.memory_peak_bytes(), self._cgroup.pids_peak()

    def full(self) -> frozenset[str]:
        """Which of disk and inodes the box has used up."""
        if self._root_fd < 0:
            return frozenset()
        disk = os.fstatvfs(self._root_fd)
        full = [("disk", disk.f_bavail == 0), ("inodes", disk.f_favail == 0)]
        return frozenset(name for name, is_full in full if is_full)

    def wall_left_s(self) -> float:
        return self._deadline_s - self._loop.time()

    def cpu_used_s(self, now: Counters) -> float:
        if self._first_cpu_us is None:
            self._first_cpu_us = now.cpu_us
        return (now.cpu_us - self._first_cpu_us) / 1e6

    def ask_kill(self, id: int) -> None:
        command = self._commands.get(id)
        alone = command is not None and command.forked and not self._overlapped
        try:
            self._control.send(protocol.kill_request(id, alone=alone))
        except OSError:
            self.destroy("its PID 1 takes no requests")

    # --- commands -----------------------------------------------------------------------

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float | None = None,
        on_output: OutputCallback | None = None,
    ) -> ExecResult:
        request = self._request(argv, env, cwd)
        if timeout_s is not None and not timeout_s > 0:
            raise UserError(f"timeout_s {timeout_s!r}: must be positive")
        self._check_alive()
        zygote = self._zygote_for(request)
        self._last_command += 1
        command = Command(
            self,
            self._last_command,
            stdin=stdin,
            timeout_s=timeout_s,
            on_output=on_output,
            forked=zygote is not None,
        )
        self._commands[command.id] = command
        try:
            if zygote is None:
                await self._send_run(command, request)
            else:
                self._send_fork(zygote, command, request)
            return await self._result(command)
        finally:
            self._commands.pop(command.id, None)

    def _request(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str | None
    ) -> "_Request":
        if isinstance(argv, str) or not argv or not argv[0]:
            raise UserError(f"argv {argv!r}: must be a list of words, the first a program")
        whole = DEFAULT_ENV | dict(env or {})
        directory = posixpath.join(self._workdir, cwd) if cwd is not None else self._workdir
        for field, texts in (
            ("argv", argv),
            ("env", [*whole, *whole.values()]),
            ("cwd", [directory]),
        ):
            for text in texts:
                if not isinstance(text, str) or "\0" in text:
                    raise UserError(f"{field} {text!r}: must be text without NUL")
        if any("=" in name or not name for name in whole):
            raise UserError("env: a name must not be empty or hold '='")
        if cwd is not None:
            self._check_cwd(directory)
        return _Request(directory, argv, whole)

    def _check_cwd(self, directory: str) -> None:
        """A cwd must be a directory inside; /proc/self/fd/N and the like are none."""
        self._check_alive()
        if directory.startswith("/proc") or self._files.stat(directory).kind not in (
            "directory",
            "link",
        ):
            raise UserError(f"cwd {directory!r}: must be a directory in the box")

    def _zygote_for(self, request: "_Request") -> Zygote | None:
        """A warm interpreter for this command, if nothing else is alive in the box."""
        if not self._forks or self._host.zygotes is None or self._commands:
            return None
        kind = start_kind(request.argv, request.env)
        if kind is None or len(request.body) > protocol.INLINE_BODY_BYTES:
            return None
        zygote = self._host.zygotes.find(kind)
        return zygote if zygote is not None and self._cgroup.pids_now() == 1 else None

    def _send_fork(self, zygote: Zygote, command: Command, request: "_Request") -> None:
        self._overlapped = False
        accepted = zygote.fork(
            command=command.id,
            group=f"u{self._uid}",
            init_pidfd=self._init_pidfd,
            fds=command.fds,
            open_files=self._limits.open_files,
            words=(request.cwd, request.argv, request.env),
            on_exit=command.exited,
            on_lost=self._lose_zygote,
        )
        command.handed_over()
        if not accepted:
            self._lose_zygote()

    def _lose_zygote(self) -> None:
        self._host_evidence = "the warm interpreter's process ended or took no requests"
        self.destroy(self._host_evidence)

    async def _send_run(self, command: Command, request: "_Request") -> None:
        """Hand the request to PID 1, with the command's descriptors."""
        flags = protocol.FLAG_STDIN if command.stdin else 0
        if any(other.forked for other in self._commands.values()):
            self._overlapped = True
            flags |= protocol.FLAG_SHARED
        body = request.body
        fds, inline, memfd = command.fds, body, -1
        if len(body) > protocol.INLINE_BODY_BYTES:
            memfd = os.memfd_create("request")
            os.write(memfd, body)
            fds, inline, flags = [*fds, memfd], b"", flags | protocol.FLAG_BODY_IN_MEMFD
        header = protocol.run_header(
            command.id, flags, len(request.argv), len(request.env), len(body)
        )
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        deadline_s = self._loop.time() + _SEND_TIMEOUT_S
        try:
            while not command.done.done():
                try:
                    self._control.sendmsg([header, inline], rights)
                    return
                except BlockingIOError:
                    if self._loop.time() > deadline_s:
                        self.destroy("its PID 1 takes no requests")
                    await asyncio.sleep(0.005)
                except OSError as error:
                    self.destroy(f"its PID 1 takes no requests ({error.strerror})")
                    return
        finally:
            command.handed_over()
            if memfd >= 0:
                os.close(memfd)

    async def _result(self, command: Command) -> ExecResult:
        try:
            return await asyncio.shield(command.done)
        except asyncio.CancelledError:
            command.kill(ExecStatus.CANCELLED)
            await asyncio.wait({command.done})
            command.done.exception()
            raise

    def _on_control(self) -> None:
        try:
            if not self._ready.done():
                message, ancillary, _, _ = self._control.recvmsg(256, 256)
                if message:
                    self._say_hello(message, ancillary)
                    return
            else:
                message = self._control.recv(256)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._finish_soon()
            return
        reply = protocol.parse_reply(message)
        if reply is None or reply.op == protocol.HELLO:
            self.destroy("its PID 1 broke the protocol")
            return
        command = self._commands.get(reply.id)
        if command is None:
            return
        if reply.op == protocol.EXITED:
            command.exited(reply)
        else:
            command.killed()

    # --- files --------------------------------------------------------------------------

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        self._check_alive()
        return self._files.read(path, max_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check_alive()
        self._files.write(path, data, mode)

    async def upload(self, files: Mapping[str, bytes], *, directory: str) -> None:
        self._check_alive()
        self._files.upload(files, directory)

    async def download(
        self, directory: str, *, max_bytes: int = 64 << 20, max_files: int = 4096
    ) -> dict[str, bytes]:
        self._check_alive()
        return self._files.download(directory, max_bytes, max_files)

    async def list(self, path: str) -> list[FileStat]:
        self._check_alive()
        return self._files.list(path)

    async def stat(self, path: str) -> FileStat:
        self._check_alive()
        return self._files.stat(path)

    async def remove(self, path: str) -> None:
        self._check_alive()
        self._files.remove(path)

    # --- the end ------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise SandboxLost(str(self._lost), host_evidence=self._lost.host_evidence)
        if self._end is not None:
            raise SandboxLost(f"box {self._id} is gone: {self._why_destroyed or 'it ended'}")

    def destroy(self, why: str) -> None:
        """Kill all of the box now; `why` goes into the errors that follow."""
        if self._why_destroyed is None:
            self._why_destroyed = why
        self._kill_init()
        self._finish_soon()

    def _kill_init(self) -> None:
        for pidfd in (self._init_pidfd, self._launcher_pidfd):
            if pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signals.pidfd_send_signal(pidfd, signals.SIGKILL)
                return

    def _finish_soon(self) -> None:
        if self._end is None:
            self._end = self._loop.create_task(self._finish())

    async def close(self) -> None:
        self.destroy("it was closed")
        assert self._end is not None
        await asyncio.shield(self._end)

    async def _finish(self) -> None:
        """Wait for the processes, tell the commands, give everything back. Never raises."""
        self._loop.remove_reader(self._control.fileno())
        if self._deadline is not None:
            self._deadline.cancel()
        wait_status = await self._wait_for_launcher()
        out_of_memory = self._cgroup.oom_kills() > 0
        self._lost = self._explain(wait_status, out_of_memory)
        for command in list(self._commands.values()):
            command.box_ended(self._lost, out_of_memory=out_of_memory)
        if not self._ready.done():
            self._ready.set_exception(self._lost)
            self._ready.exception()
        self._control.close()
        for fd in (self._root_fd, self._init_pidfd, self._launcher_pidfd):
            if fd >= 0:
                os.close(fd)
        self._root_fd = self._init_pidfd = self._launcher_pidfd = -1
        self.leaked = not await self._remove_cgroup()
        if not self.leaked:
            self._host.owner.uids.give_back(self._uid)

    async def _wait_for_launcher(self) -> int | None:
        """bubblewrap outlives PID 1 and reports how it died; None if it will not end."""
        status = self._reap_launcher()
        if status is not None:
            return status
        ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._launcher_pidfd, _resolve, ended)
        try:
            await asyncio.wait({ended}, timeout=_REMOVE_TIMEOUT_S / 2)
            if not ended.done():
                os.kill(self._launcher_pid, signals.SIGKILL)
                await asyncio.wait({ended}, timeout=_REMOVE_TIMEOUT_S / 2)
        finally:
            self._loop.remove_reader(self._launcher_pidfd)
        return self._reap_launcher()

    def _reap_launcher(self) -> int | None:
        """Its wait status; None while it lives."""
        pid, status = os.waitpid(self._launcher_pid, os.WNOHANG)
        return status if pid else None

    def _explain(self, wait_status: int | None, out_of_memory: bool) -> SandboxLost:
        if out_of_memory:
            return SandboxLost(f"box {self._id} is gone: it ran out of memory")
        if self._why_destroyed is not None:
            return SandboxLost(
                f"box {self._id} is gone: {self._why_destroyed}", host_evidence=self._host_evidence
            )
        evidence = ""
        if wait_status is not None and os.WIFSIGNALED(wait_status):
            evidence = f"bubblewrap was killed from outside by signal {os.WTERMSIG(wait_status)}"
        elif wait_status is not None and os.WEXITSTATUS(wait_status) == 128 + signals.SIGKILL:
            evidence = "PID 1 was killed from outside (inside, nothing can kill it)"
        return SandboxLost(
            f"box {self._id} vanished: {evidence or 'its PID 1 ended'}", host_evidence=evidence
        )

    async def _remove_cgroup(self) -> bool:
        deadline_s = self._loop.time() + _REMOVE_TIMEOUT_S
        wait_s = 0.001
        while not self._cgroup.remove():
            if self._loop.time() > deadline_s:
                return False
            self._cgroup.kill()  # e.g. bubblewrap's child, when its parent died too early
            await asyncio.sleep(wait_s)
            wait_s = min(0.1, wait_s * 2)
        return True


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _read_all(fd: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, 4096)
    return b""
