"""One command in a box: its streams, its clocks, and the verdict on how it ended.

A state machine driven by callbacks (PID 1's replies, pipes, one timer); `done` resolves once.
The status follows from what the supervisor did and what the cgroup counted; PID 1 is asked
only for the leader's wait status.
"""

import asyncio
import errno
import os
import signal as signals
from dataclasses import dataclass
from typing import Protocol

from trialyard.core.errors import SandboxLost
from trialyard.core.sandbox import ExecResult, ExecStatus, ExecUsage, Limits, OutputCallback
from trialyard.sandboxes.protocol import Reply
from trialyard.sandboxes.streams import InputStream, OutputStream

OUTPUT_KILL_FACTOR = 16
OUTPUT_KILL_FLOOR_BYTES = 64 << 10
HELD_PIPE_GRACE_S = 0.1
"""How long output is still taken when the leader is gone but a child holds the pipe."""
SIGKILL_GRACE_S = 0.05
"""A leader that died of a SIGKILL not ours may be the first victim of a host that kills the
whole box: wait this long for the box itself to go."""
KILL_TIMEOUT_S = 2.0
"""PID 1 must have killed a command by then, or the box goes."""
POLL_S = 0.5
"""How often a long command is checked for memory and CPU time."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Box-wide counts at one moment."""

    cpu_us: int
    oom_kills: int
    pids_refused: int
    throttled: int = 0
    """How often traffic had to wait for bandwidth."""


class BoxView(Protocol):
    """What a command needs of its box."""

    @property
    def limits(self) -> Limits: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def counters(self) -> Counters: ...
    def peaks(self) -> tuple[int, int]: ...
    def full(self) -> frozenset[str]: ...
    def wall_left_s(self) -> float: ...
    def cpu_used_s(self, now: Counters) -> float: ...
    def ask_kill(self, id: int) -> None: ...
    def destroy(self, why: str) -> None: ...


class Command:
    """A command that was or will be sent to PID 1."""

    def __init__(
        self,
        box: BoxView,
        id: int,
        *,
        stdin: bytes,
        timeout_s: float | None,
        on_output: OutputCallback | None,
        forked: bool = False,
    ) -> None:
        self.id = id
        self.forked = forked
        """Started by a zygote, which reports its end; PID 1 only kills it."""
        self._box = box
        self._loop = box.loop
        self.done: asyncio.Future[ExecResult] = self._loop.create_future()
        self._on_output = on_output
        self._callback_error: BaseException | None = None
        self._started_s = self._last_output_s = self._loop.time()
        self._deadline_s = self._started_s + (float("inf") if timeout_s is None else timeout_s)
        self._before = box.counters()
        self._reason: ExecStatus | None = None
        self._limits_hit: set[str] = set()
        self._wait_status: int | None = None
        self._start_errno = 0
        self._all_dead = False
        keep = box.limits.output_bytes
        self._kill_above_bytes = max(OUTPUT_KILL_FLOOR_BYTES, OUTPUT_KILL_FACTOR * keep)
        self.stdout = self._stream("stdout", keep)
        self.stderr = self._stream("stderr", keep)
        self.stdin = InputStream(self._loop, stdin) if stdin or forked else None
        self._timer = self._loop.call_later(self._next_check_s(), self._check)

    def _stream(self, name: str, keep_bytes: int) -> OutputStream:
        stream: OutputStream

        def on_chunk(kept: bytes) -> None:
            self._last_output_s = self._loop.time()
            if self._on_output is not None and kept:
                self._call_back(name, kept)
            if stream.total_bytes > self._kill_above_bytes:
                self.kill(ExecStatus.OUTPUT_LIMIT, "output")

        stream = OutputStream(
            self._loop, keep_bytes=keep_bytes, on_chunk=on_chunk, on_end=self._finish_if_ended
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

    @property
    def fds(self) -> list[int]:
        """Descriptors that PID 1 gets with the request."""
        stdin = [self.stdin.read_fd] if self.stdin else []
        return [*stdin, self.stdout.write_fd, self.stderr.write_fd]

    def handed_over(self) -> None:
        """The request is on its way: PID 1 holds the descriptors."""
        self.stdout.close_write_end()
        self.stderr.close_write_end()
        if self.stdin:
            self.stdin.close_read_end()

    # --- clocks -------------------------------------------------------------------------

    def _next_check_s(self) -> float:
        now_s = self._loop.time()
        limits = self._box.limits
        waits = [POLL_S, self._box.wall_left_s(), self._deadline_s - now_s]
        if limits.idle_s is not None:
            waits.append(self._last_output_s + limits.idle_s - now_s)
        if limits.cpu_s is not None:
            left_s = limits.cpu_s - self._box.cpu_used_s(self._before)
            waits.append(max(0.02, left_s / limits.cpus))
        return max(0.001, min(waits))

    def _check(self) -> None:
        now_s = self._loop.time()
        limits = self._box.limits
        now = self._box.counters()
        if now.oom_kills > 0:
            self._box.destroy("it ran out of memory")
            return
        if now_s >= self._deadline_s or self._box.wall_left_s() <= 0:
            self.kill(ExecStatus.TIMEOUT, "wall")
        elif limits.idle_s is not None and now_s - self._last_output_s >= limits.idle_s:
            self.kill(ExecStatus.TIMEOUT, "idle")
        elif limits.cpu_s is not None and self._box.cpu_used_s(now) >= limits.cpu_s:
            self.kill(ExecStatus.TIMEOUT, "cpu")
        else:
            self._timer = self._loop.call_later(self._next_check_s(), self._check)

    def kill(self, reason: ExecStatus, limit: str | None = None) -> None:
        """End the command and all that it started. The first reason stands."""
        if self._reason is not None or self.done.done():
            return
        self._reason = reason
        if limit is not None:
            self._limits_hit.add(limit)
        self._timer.cancel()
        self._timer = self._loop.call_later(
            KILL_TIMEOUT_S, self._box.destroy, "its PID 1 did not kill a command in time"
        )
        self._box.ask_kill(self.id)

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
        self._timer.cancel()
        if os.WIFSIGNALED(reply.wait_status) and os.WTERMSIG(reply.wait_status) == signals.SIGKILL:
            self._timer = self._loop.call_later(SIGKILL_GRACE_S, self._after_sigkill)
        else:
            self._after_exit()

    def _after_sigkill(self) -> None:
        if self._box.counters().oom_kills > 0:
            self._box.destroy("it ran out of memory")
        else:
            self._after_exit()

    def _after_exit(self) -> None:
        self.stdout.drain()
        self.stderr.drain()
        if not self._maybe_finish() and not self.done.done():
            self._timer = self._loop.call_later(HELD_PIPE_GRACE_S, self._finish)

    def killed(self) -> None:
        """PID 1 says that all of the command is dead."""
        self._all_dead = True
        if self._wait_status is None and self.forked:
            return
        self.stdout.drain()
        self.stderr.drain()
        self._finish()

    def _finish_if_ended(self) -> None:
        self._maybe_finish()

    def _maybe_finish(self) -> bool:
        ended = self.stdout.ended and self.stderr.ended
        if ended and self._wait_status is not None and self._reason is None:
            self._finish()
            return True
        return False

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
        self._timer.cancel()
        self.stdout.close()
        self.stderr.close()
        if self.stdin:
            self.stdin.close()

    def _finish(self, *, out_of_memory: bool = False) -> None:
        if self.done.done():
            return
        after = self._box.counters()
        self._release()
        if self._callback_error is not None:
            self.done.set_exception(self._callback_error)
            return
        if after.oom_kills > 0:
            out_of_memory = True
            self._box.destroy("it ran out of memory")
        self.done.set_result(self._result(after, out_of_memory))

    def _result(self, after: Counters, out_of_memory: bool) -> ExecResult:
        hit = set(self._limits_hit) | self._box.full()
        limit = self._box.limits.output_bytes
        if self.stdout.total_bytes > limit or self.stderr.total_bytes > limit:
            hit.add("output")
        if after.pids_refused > self._before.pids_refused:
            hit.add("pids")
        if after.throttled > self._before.throttled:
            hit.add("network")
        limit_s = self._box.limits.cpu_s
        if self._reason is None and limit_s and self._box.cpu_used_s(after) >= limit_s:
            self._reason = ExecStatus.TIMEOUT  # it ended between two looks at the clock
            hit.add("cpu")
        status, exit_code, signal = self._status(out_of_memory)
        if status is ExecStatus.OOM:
            hit.add("memory")
        stderr = self.stderr.kept
        if self._start_errno and status is ExecStatus.EXITED:
            exit_code = 127 if self._start_errno in (errno.ENOENT, errno.ENOTDIR) else 126
            stderr += f"cannot start: {os.strerror(self._start_errno)}\n".encode()
        memory_peak_bytes, pids_peak = self._box.peaks()
        return ExecResult(
            status=status,
            exit_code=exit_code,
            signal=signal,
            stdout=self.stdout.kept,
            stderr=stderr,
            stdout_bytes=self.stdout.total_bytes,
            stderr_bytes=max(self.stderr.total_bytes, len(stderr)),
            limits_hit=frozenset(hit),
            usage=ExecUsage(
                wall_s=self._loop.time() - self._started_s,
                cpu_s=max(0, after.cpu_us - self._before.cpu_us) / 1e6,
                memory_peak_bytes=memory_peak_bytes,
                pids_peak=pids_peak,
            ),
        )

    def _status(self, out_of_memory: bool) -> tuple[ExecStatus, int | None, int | None]:
        if out_of_memory:
            return ExecStatus.OOM, None, None
        if self._reason is not None:
            return self._reason, None, None
        status = self._wait_status or 0
        if os.WIFSIGNALED(status):
            return ExecStatus.SIGNALED, None, os.WTERMSIG(status)
        return ExecStatus.EXITED, os.WEXITSTATUS(status), None
