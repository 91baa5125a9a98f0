"""The commands of one box that have not ended, and how each is started in it.

A command goes to PID 1, or becomes a fork of a warm interpreter when nothing else is alive in
the box. Whatever cannot be handed over in time ends the box: no command is left half started.
"""

import asyncio
import os
from collections.abc import Iterator
from typing import Protocol

from trialyard.core.sandbox import OutputCallback
from trialyard.sandboxes import protocol
from trialyard.sandboxes.box_process import BoxProcess
from trialyard.sandboxes.cgroups import BoxCgroup
from trialyard.sandboxes.command import BoxView, Command
from trialyard.sandboxes.protocol import Reply
from trialyard.sandboxes.request import RunRequest
from trialyard.sandboxes.zygote import Zygote, Zygotes

_SEND_TIMEOUT_S = 10.0


class CommandedBox(BoxView, Protocol):
    """What commands need of their box."""

    def destroy(self, why: str, *, host_evidence: str = "") -> None: ...
    def vanished(self) -> None: ...


class BoxCommands:
    """Iterating gives the commands that have not ended."""

    def __init__(self, box: CommandedBox, process: BoxProcess, cgroup: BoxCgroup, uid: int) -> None:
        self._box = box
        self._process = process
        self._cgroup = cgroup
        self._uid = uid
        self._commands: dict[int, Command] = {}
        self._zygotes: dict[int, Zygote] = {}
        self._last_id = 0
        self._overlapped = False

    def __iter__(self) -> Iterator[Command]:
        return iter(list(self._commands.values()))

    def new(
        self,
        request: RunRequest,
        warm: Zygotes | None,
        stdin: bytes,
        timeout_s: float | None,
        on_output: OutputCallback | None,
    ) -> Command:
        """A command that is not sent yet; `warm` are the interpreters that may stand in."""
        zygote = self._zygote_for(request, warm)
        self._last_id += 1
        command = Command(
            self._box,
            self._last_id,
            stdin=stdin,
            timeout_s=timeout_s,
            on_output=on_output,
            forked=zygote is not None,
        )
        self._commands[command.id] = command
        if zygote is not None:
            self._zygotes[command.id] = zygote
        return command

    def _zygote_for(self, request: RunRequest, warm: Zygotes | None) -> Zygote | None:
        """A warm interpreter for this command, if nothing else is alive in the box."""
        if warm is None or self._commands:
            return None
        zygote = warm.find(request.argv, request.env)
        if zygote is None or len(request.body) > protocol.INLINE_BODY_BYTES:
            return None
        return zygote if self._cgroup.pids_now() == 1 else None

    def forget(self, command: Command) -> None:
        """It has ended, and somebody was told."""
        self._commands.pop(command.id, None)
        self._zygotes.pop(command.id, None)

    # --- starting -----------------------------------------------------------------------

    async def send(self, command: Command, request: RunRequest) -> None:
        """Start it; its end arrives at the command."""
        zygote = self._zygotes.get(command.id)
        if zygote is None:
            await self._send_run(command, request)
        else:
            self._send_fork(zygote, command, request)

    async def _send_run(self, command: Command, request: RunRequest) -> None:
        """Hand the request to PID 1, with the command's descriptors."""
        flags = protocol.FLAG_STDIN if command.stdin else 0
        if any(other.forked for other in self._commands.values()):
            self._overlapped = True
            flags |= protocol.FLAG_SHARED
        fds, body, memfd = command.fds, request.body, -1
        if len(body) > protocol.INLINE_BODY_BYTES:
            memfd = os.memfd_create("request")
            os.write(memfd, body)
            fds, body, flags = [*fds, memfd], b"", flags | protocol.FLAG_BODY_IN_MEMFD
        header = protocol.run_header(
            command.id, flags, len(request.argv), len(request.env), len(request.body)
        )
        try:
            await self._send([header, body], fds, command)
        finally:
            command.handed_over()
            if memfd >= 0:
                os.close(memfd)

    async def _send(self, parts: list[bytes], fds: list[int], command: Command) -> None:
        loop = self._box.loop
        deadline_s = loop.time() + _SEND_TIMEOUT_S
        while not command.done.done():
            try:
                self._process.send(parts, fds)
                return
            except BlockingIOError:
                if loop.time() > deadline_s:
                    self._box.destroy("its PID 1 takes no requests")
                await asyncio.sleep(0.005)
            except OSError:
                self._box.vanished()
                return

    def _send_fork(self, zygote: Zygote, command: Command, request: RunRequest) -> None:
        self._overlapped = False
        accepted = zygote.fork(
            request,
            command=command.id,
            group=f"u{self._uid}",
            open_files=self._box.limits.open_files,
            fds=[self._process.init_pidfd, *command.fds],
            on_exit=command.exited,
            on_lost=self._lose_zygote,
        )
        command.handed_over()
        if not accepted:
            self._lose_zygote()

    def _lose_zygote(self) -> None:
        why = "the warm interpreter's process ended or took no requests"
        self._box.destroy(why, host_evidence=why)

    # --- ending -------------------------------------------------------------------------

    def take(self, reply: Reply) -> None:
        """A message of PID 1 about one of them."""
        command = self._commands.get(reply.id)
        if command is None:
            return
        if reply.op == protocol.KILLED:
            command.killed()
        elif not command.forked:
            command.exited(reply)

    def ask_kill(self, id: int) -> None:
        """Have PID 1 kill a command with all that it started."""
        command = self._commands.get(id)
        alone = command is not None and command.forked and not self._overlapped
        try:
            self._process.send([protocol.kill_request(id, alone=alone)])
        except BlockingIOError:
            self._box.destroy("its PID 1 takes no requests")
        except OSError:
            self._box.vanished()
