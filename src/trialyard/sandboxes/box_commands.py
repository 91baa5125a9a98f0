"""The commands of one box that have not ended: numbered, started, killed, told of their end.

A command goes to PID 1, or becomes a fork of a warm interpreter when nothing else is alive in
the box and nobody will want to signal it. Whatever cannot be handed over in time ends the box:
no command is left half started.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Protocol

from trialyard.core.errors import SandboxLost
from trialyard.core.sandbox import ExecResult, ExecStatus
from trialyard.sandboxes import protocol
from trialyard.sandboxes.box_process import BoxProcess
from trialyard.sandboxes.box_view import BoxView
from trialyard.sandboxes.cgroups import BoxCgroup
from trialyard.sandboxes.command import KILL_TIMEOUT_S, Command, CommandOptions, Watch
from trialyard.sandboxes.protocol import Reply
from trialyard.sandboxes.request import RunRequest
from trialyard.sandboxes.streams import Ends
from trialyard.sandboxes.zygote import Zygote, Zygotes

_SEND_TIMEOUT_S = 10.0


class CommandedBox(BoxView, Protocol):
    """What commands need of their box."""

    def destroy(self, why: str, *, host_evidence: str = "") -> None: ...
    def vanished(self) -> None: ...


class BoxCommands:
    """Every command of a box that has not ended, and the way to PID 1."""

    def __init__(self, box: CommandedBox, process: BoxProcess, cgroup: BoxCgroup, uid: int) -> None:
        self._box = box
        self._loop = box.loop
        self._process = process
        self._cgroup = cgroup
        self._uid = uid
        self._commands: dict[int, Command] = {}
        self._kills: dict[int, asyncio.Future[None]] = {}
        self._last_id = 0
        self._overlapped = False
        self._lost: SandboxLost | None = None

    def take_id(self) -> int:
        """The next number; the commands of a shell have numbers too."""
        self._last_id += 1
        return self._last_id

    # --- starting -----------------------------------------------------------------------

    async def start(
        self,
        request: RunRequest,
        ends: Ends,
        options: CommandOptions,
        *,
        warm: Zygotes | None = None,
        watch: Watch | None = None,
    ) -> Command:
        """Start a command on `ends`. One that cannot be started ends with 126 or 127.

        `warm` are the interpreters that may stand in for it; `watch` takes its output over.
        """
        zygote = self._zygote_for(request, warm)
        command = Command(
            self._box,
            self.take_id(),
            ends,
            options,
            ask_kill=self._ask_kill,
            watch=watch,
            forked=zygote is not None,
        )
        self._commands[command.id] = command
        command.done.add_done_callback(lambda _: self._commands.pop(command.id, None))
        try:
            if self._lost is not None:
                command.box_ended(self._lost, out_of_memory=False)
            elif zygote is not None:
                self._send_fork(zygote, command, request)
            else:
                await self._send_run(command, request)
        except BaseException:
            command.never_started()
            raise
        finally:
            ends.close_given()
        return command

    def _zygote_for(self, request: RunRequest, warm: Zygotes | None) -> Zygote | None:
        """A warm interpreter for this command, if nothing else is alive in the box."""
        if warm is None or self._commands or request.user is not None:
            return None
        zygote = warm.find(request.argv, request.env)
        if zygote is None or len(request.body) > protocol.INLINE_BODY_BYTES:
            return None
        return zygote if self._cgroup.pids_now() == 1 else None

    def _send_fork(self, zygote: Zygote, command: Command, request: RunRequest) -> None:
        self._overlapped = False
        if command.stdin is None:
            nothing, write_end = os.pipe2(os.O_CLOEXEC)
            os.close(write_end)
            command.ends.given.insert(0, nothing)
        accepted = zygote.fork(
            request,
            command=command.id,
            group=f"u{self._uid}",
            open_files=self._box.limits.open_files,
            fds=[self._process.init_pidfd, *command.ends.given],
            on_exit=command.exited,
            on_lost=self._lose_zygote,
        )
        if not accepted:
            self._lose_zygote()

    def _lose_zygote(self) -> None:
        why = "the warm interpreter's process ended or took no requests"
        self._box.destroy(why, host_evidence=why)

    async def _send_run(self, command: Command, request: RunRequest) -> None:
        """Hand the request to PID 1, with the command's descriptors."""
        flags = command.ends.flags
        if any(other.forked for other in self._commands.values()):
            self._overlapped = True
            flags |= protocol.FLAG_SHARED
        fds, body, memfd = command.ends.given, request.body, -1
        if len(body) > protocol.INLINE_BODY_BYTES:
            memfd = os.memfd_create("request")
            os.write(memfd, body)
            fds, body, flags = [*fds, memfd], b"", flags | protocol.FLAG_BODY_IN_MEMFD
        header = protocol.run_header(
            command.id,
            flags,
            (len(request.argv), len(request.env)),
            len(request.body),
            first_extra_fd=command.ends.first_extra_fd,
            user=request.user,
        )
        try:
            await self._send([header, body], fds, command)
        finally:
            if memfd >= 0:
                os.close(memfd)

    async def _send(self, parts: Sequence[bytes], fds: Sequence[int], command: Command) -> None:
        deadline_s = self._loop.time() + _SEND_TIMEOUT_S
        while not command.done.done():
            try:
                self._process.send(parts, fds)
                return
            except BlockingIOError:
                if self._loop.time() > deadline_s:
                    self._box.destroy("its PID 1 takes no requests")
                await asyncio.sleep(0.005)
            except OSError:  # PID 1 is gone; the end of its socket says so too
                self._box.vanished()
                return

    def _tell(self, message: bytes) -> None:
        try:
            self._process.send([message])
        except BlockingIOError:
            self._box.destroy("its PID 1 takes no requests")
        except OSError:
            self._box.vanished()

    # --- ending -------------------------------------------------------------------------

    async def finish(self, command: Command) -> ExecResult:
        """Its result; when the caller leaves, the command is killed first."""
        try:
            return await asyncio.shield(command.done)
        except asyncio.CancelledError:
            command.kill(ExecStatus.CANCELLED)
            await asyncio.wait({command.done})
            raise

    def _ask_kill(self, command: Command) -> None:
        alone = command.forked and not self._overlapped
        self._tell(protocol.kill_request(command.id, alone=alone))

    async def kill_rest(self, id: int, *, shell: int | None = None) -> None:
        """Kill what an ended command, or one command of a shell, has left; returns when dead."""
        if self._lost is not None:
            return
        killed = self._kills.get(id)
        if killed is None:
            killed = self._kills[id] = self._loop.create_future()
            self._tell(protocol.kill_request(id, shell=shell))
        done, _ = await asyncio.wait({killed}, timeout=KILL_TIMEOUT_S)
        if not done:
            self._box.destroy("its PID 1 did not kill a command in time")

    def signal(self, command: Command, number: int, *, leader_only: bool = False) -> None:
        if not command.done.done():
            self._tell(protocol.signal_request(command.id, number, leader_only=leader_only))

    def signal_in_shell(self, shell: Command, id: int, number: int) -> None:
        """To what command `id` of a shell runs, but not to the shell."""
        if not shell.done.done():
            self._tell(protocol.signal_request(id, number, shell=shell.id))

    def take(self, reply: Reply) -> None:
        """A message of PID 1; one about nothing we know is no harm."""
        command = self._commands.get(reply.id)
        if reply.op == protocol.KILLED and reply.id in self._kills:
            self._kills.pop(reply.id).set_result(None)
        elif command is None:
            return
        elif reply.op == protocol.KILLED:
            command.killed()
        elif not command.forked:
            command.exited(reply)

    def out_of_time(self) -> None:
        """The box's wall time is over: every command ends of it."""
        for command in list(self._commands.values()):
            command.kill(ExecStatus.TIMEOUT, "wall")

    def box_ended(self, lost: SandboxLost, *, out_of_memory: bool) -> None:
        """All are dead with the box."""
        self._lost = lost
        for command in list(self._commands.values()):
            command.box_ended(lost, out_of_memory=out_of_memory)
        for killed in self._kills.values():
            killed.set_result(None)
        self._kills.clear()
