"""One command of a shell: its clocks, its output, and why it was stopped, if it was."""

import asyncio
from collections.abc import Callable

from trialyard.core.sandbox import ExecResult, ExecStatus, OutputCallback
from trialyard.sandboxes.box_view import BoxView, goes_for_memory
from trialyard.sandboxes.clocks import Clocks
from trialyard.sandboxes.command import kill_above_bytes
from trialyard.sandboxes.meter import Ending, Meter, Output
from trialyard.sandboxes.shell_script import Report

Stop = Callable[["ShellCommand", ExecStatus, str | None], None]


class ShellCommand:
    """`over` resolves when the shell has reported, or has ended itself."""

    def __init__(
        self,
        box: BoxView,
        id: int,
        *,
        timeout_s: float | None,
        on_output: OutputCallback | None,
        stop: Stop,
    ) -> None:
        self.id = id
        self._box = box
        self._on_output = on_output
        self._stop = stop
        self.over: asyncio.Future[None] = box.loop.create_future()
        self.report: Report | None = None
        self.stdout = self.stderr = Output()
        self.reason: ExecStatus | None = None
        self._limits_hit: frozenset[str] = frozenset()
        self.callback_error: BaseException | None = None
        self.asking: asyncio.TimerHandle | None = None
        self._kill_above_bytes = kill_above_bytes(box.limits.output_bytes)
        self._meter = Meter(box)
        self._clocks = Clocks(
            box,
            timeout_s=timeout_s,
            idle_s=box.limits.idle_s,
            on_over=lambda limit: stop(self, ExecStatus.TIMEOUT, limit),
        )

    def took(self, name: str, kept: bytes, total_bytes: int) -> None:
        """A chunk came, of which `kept` is kept."""
        self._clocks.output_came()
        if self._on_output is not None and kept:
            try:
                self._on_output("stdout" if name == "stdout" else "stderr", kept)
            except BaseException as error:  # noqa: BLE001 - it is the caller's, and goes back to him
                self.callback_error = error
                self._on_output = None
                self._stop(self, ExecStatus.CANCELLED, None)
        if total_bytes > self._kill_above_bytes:
            self._stop(self, ExecStatus.OUTPUT_LIMIT, "output")

    def give_reason(self, reason: ExecStatus, limit: str | None) -> bool:
        """Why it is being stopped; False when it is over, or being stopped already."""
        if self.reason is not None or self.over.done():
            return False
        self.reason = reason
        self._limits_hit = frozenset({limit} if limit else ())
        self._clocks.stop()
        return True

    def end(self) -> None:
        self._clocks.stop()
        if self.asking is not None:
            self.asking.cancel()

    def result(
        self, status: ExecStatus, exit_code: int | None, hit: frozenset[str] = frozenset()
    ) -> ExecResult:
        """The result; a reason that we had to stop it stands above what it ended with."""
        after = self._box.counters()
        if goes_for_memory(self._box, after) and after.oom_kills:
            ending = Ending(ExecStatus.OOM, limits_hit=self._limits_hit)
        elif self.reason is not None:
            ending = Ending(self.reason, limits_hit=self._limits_hit | hit)
        else:
            ending = Ending(status, exit_code, limits_hit=hit)
        return self._meter.result(ending, self.stdout, self.stderr, after)
