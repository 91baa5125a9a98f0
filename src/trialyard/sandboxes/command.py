"""One command in a box: its streams, its clocks, and the verdict on how it ended.

A state machine driven by callbacks (PID 1's replies, pipes, timers); `done` resolves once.
The status follows from what the supervisor did and what the cgroup counted; PID 1 is asked
only for the leader's wait status.
"""

import asyncio
import errno
import os
import signal as signals
from collections.abc import Callable
from dataclasses import dataclass

from trialyard.core.errors import SandboxLost
from trialyard.core.sandbox import ExecResult, ExecStatus, OutputCallback
from trialyard.sandboxes.box_view import OUT_OF_MEMORY, BoxView, goes_for_memory
from trialyard.sandboxes.clocks import Clocks
from trialyard.sandboxes.meter import Ending, Meter, Output
from trialyard.sandboxes.protocol import Reply
from trialyard.sandboxes.streams import Ends, InputStream, OutputStream

OUTPUT_KILL_FACTOR = 16
OUTPUT_KILL_FLOOR_BYTES = 64 << 10
HELD_PIPE_GRACE_S = 0.1
"""How long output is still taken when the leader is gone but a child holds the pipe."""
SIGKILL_GRACE_S = 0.05
"""A leader that died of a SIGKILL not ours may be the first victim of a host that kills the
whole box: wait this long for the box itself to go."""
KILL_TIMEOUT_S = 2.0
"""PID 1 must have killed a command by then, or the box goes."""


Watch = Callable[[str, bytes], None]
"""Takes over what comes from a command: the name of the stream, and what is kept of it."""


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """How a command is to be treated, apart from what it is."""

    stdin: bytes = b""
    stdin_stays_open: bool = False
    """For more to be written to it."""
    timeout_s: float | None = None
    idle_s: float | None = None
    output_bytes: int = 0
    """Kept of each stream."""
    on_output: OutputCallback | None = None


def kill_above_bytes(output_bytes: int) -> int:
    """A stream that gave more than this ends its command."""
    return max(OUTPUT_KILL_FLOOR_BYTES, OUTPUT_KILL_FACTOR * output_bytes)


class Command:
    """A command that was or will be sent to PID 1. It owns the ends that are ours."""

    def __init__(
        self,
        box: BoxView,
        id: int,
        ends: Ends,
        options: CommandOptions,
        *,
        ask_kill: Callable[["Command"], None],
        watch: Watch | None = None,
        forked: bool = False,
    ) -> None:
        self.id = id
        self.forked = forked
        """Started by a zygote, which reports its end; PID 1 only kills it."""
        self._box = box
        self._loop = box.loop
        self._ask_kill = ask_kill
        self.ends = ends
        self.done: asyncio.Future[ExecResult] = self._loop.create_future()
        self.done.add_done_callback(_look_at)
        self._watch = watch
        self._on_output = options.on_output
        self._callback_error: BaseException | None = None
        self._reason: ExecStatus | None = None
        self._limits_hit: set[str] = set()
        self._wait_status: int | None = None
        self._start_errno = 0
        self._all_dead = False
        self._grace: asyncio.TimerHandle | None = None
        self._meter = Meter(box)
        self._clocks = Clocks(
            box,
            timeout_s=options.timeout_s,
            idle_s=options.idle_s,
            on_over=lambda limit: self.kill(ExecStatus.TIMEOUT, limit),
        )
        self._kill_above_bytes = kill_above_bytes(options.output_bytes)
        self.stdout = self._stream("stdout", ends.stdout_fd, options.output_bytes)
        self.stderr = self._stream("stderr", ends.stderr_fd, options.output_bytes)
        self.stdin: InputStream | None = None
        if ends.stdin_fd >= 0:
            self.stdin = InputStream(
                self._loop, ends.stdin_fd, options.stdin, stay_open=options.stdin_stays_open
            )

    def _stream(self, name: str, fd: int, keep_bytes: int) -> OutputStream:
        stream: OutputStream

        def on_chunk(kept: bytes) -> None:
            if self._watch is not None:
                self._watch(name, kept)
                return
            self._clocks.output_came()
            if self._on_output is not None and kept:
                self._call_back(name, kept)
            if stream.total_bytes > self._kill_above_bytes:
                self.kill(ExecStatus.OUTPUT_LIMIT, "output")

        stream = OutputStream(
            self._loop, fd, keep_bytes=keep_bytes, on_chunk=on_chunk, on_end=self._finish_if_ended
        )
        return stream

    def _call_back(self, name: str, kept: bytes) -> None:
        assert self._on_output is not None
        try:
            self._on_output("stdout" if name == "stdout" else "stderr", kept)
        except BaseException as error:  # noqa: BLE001 - it is the caller's, and goes back to him
            self._callback_error = error
            self._on_output = None
            self.kill(ExecStatus.CANCELLED)

    def never_started(self) -> None:
        """The request did not go out: give everything back. For a caller that left."""
        self.ends.close_given()
        self._release()
        self.done.cancel()

    def kill(self, reason: ExecStatus, limit: str | None = None) -> None:
        """End the command and all that it started. The first reason stands."""
        if self._reason is not None or self.done.done():
            return
        self._reason = reason
        if limit is not None:
            self._limits_hit.add(limit)
        self._clocks.stop()
        self._wait_for(KILL_TIMEOUT_S, self._not_killed)
        self._ask_kill(self)

    def _not_killed(self) -> None:
        self._box.destroy("its PID 1 did not kill a command in time")

    def _wait_for(self, delay_s: float, then: Callable[[], None]) -> None:
        if self._grace is not None:
            self._grace.cancel()
        self._grace = self._loop.call_later(delay_s, then)

    # --- replies ------------------------------------------------------------------------

    def exited(self, reply: Reply) -> None:
        """The leader ended (or never started)."""
        if self._wait_status is not None:
            return
        self._wait_status = reply.wait_status
        self._start_errno = reply.start_errno
        if self._reason is not None:
            if self._all_dead:
                self.killed()
            return
        self._clocks.stop()
        if os.WIFSIGNALED(reply.wait_status) and os.WTERMSIG(reply.wait_status) == signals.SIGKILL:
            self._wait_for(SIGKILL_GRACE_S, self._after_sigkill)
        else:
            self._after_exit()

    def _after_sigkill(self) -> None:
        if not goes_for_memory(self._box, self._box.counters()):
            self._after_exit()

    def _after_exit(self) -> None:
        self.stdout.drain()
        self.stderr.drain()
        self._finish_if_ended()
        if not self.done.done() and self._reason is None:
            self._wait_for(HELD_PIPE_GRACE_S, self._finish)

    def killed(self) -> None:
        """PID 1 says that all of the command is dead."""
        self._all_dead = True
        if self._wait_status is None and self.forked:
            return
        self.stdout.drain()
        self.stderr.drain()
        self._finish()

    def _finish_if_ended(self) -> None:
        ended = self.stdout.ended and self.stderr.ended
        if ended and self._wait_status is not None and self._reason is None:
            self._finish()

    def box_ended(self, lost: SandboxLost, *, out_of_memory: bool) -> None:
        """The whole box is dead: by our hand, of memory, or somebody else's."""
        if self.done.done():
            return
        self.stdout.drain()
        self.stderr.drain()
        if out_of_memory or self._reason is not None:
            self._finish(out_of_memory=out_of_memory)
        else:
            self._release()
            self.done.set_exception(lost)

    # --- the end ------------------------------------------------------------------------

    def _release(self) -> None:
        self._clocks.stop()
        if self._grace is not None:
            self._grace.cancel()
        self.stdout.close()
        self.stderr.close()
        if self.stdin:
            self.stdin.close()

    def _finish(self, *, out_of_memory: bool = False) -> None:
        if self.done.done():
            return
        after = self._box.counters()
        if not after.oom_kills and self._reason is None and goes_for_memory(self._box, after):
            return  # what the host did is nobody's result; the end of the box says so
        self._release()
        if self._callback_error is not None:
            self.done.set_exception(self._callback_error)
            return
        if after.oom_kills > 0:
            out_of_memory = True
            self._box.destroy(OUT_OF_MEMORY)
        stdout, stderr = self.stdout.output, self.stderr.output
        ending = self._ending(out_of_memory)
        if self._start_errno and ending.status is ExecStatus.EXITED:
            kept = stderr.kept + f"cannot start: {os.strerror(self._start_errno)}\n".encode()
            stderr = Output(kept, max(stderr.total_bytes, len(kept)))
        self.done.set_result(self._meter.result(ending, stdout, stderr, after))

    def _ending(self, out_of_memory: bool) -> Ending:
        hit = frozenset(self._limits_hit)
        if out_of_memory:
            return Ending(ExecStatus.OOM, limits_hit=hit)
        if self._reason is not None:
            return Ending(self._reason, limits_hit=hit)
        status = self._wait_status or 0
        if os.WIFSIGNALED(status):
            return Ending(ExecStatus.SIGNALED, signal=os.WTERMSIG(status))
        if self._start_errno:
            missing = self._start_errno in (errno.ENOENT, errno.ENOTDIR)
            return Ending(ExecStatus.EXITED, exit_code=127 if missing else 126)
        return Ending(ExecStatus.EXITED, exit_code=os.WEXITSTATUS(status))


def _look_at(done: asyncio.Future[ExecResult]) -> None:
    """Nobody has to wait for a background command; its box's end is no surprise then."""
    if not done.cancelled():
        done.exception()
