"""The clocks of one command: its own time-out and idle time, its box's wall and CPU time."""

from collections.abc import Callable

from trialyard.sandboxes.box_view import BoxView, goes_for_memory

POLL_S = 0.5
"""How often a long command is checked for memory and CPU time."""


class Clocks:
    """Runs from its making until `stop`, or until `on_over` was told which time ran out."""

    def __init__(
        self,
        box: BoxView,
        *,
        timeout_s: float | None,
        idle_s: float | None,
        on_over: Callable[[str], None],
    ) -> None:
        self._box = box
        self._loop = box.loop
        self._idle_s = idle_s
        self._on_over = on_over
        self.started_s = self._last_output_s = self._loop.time()
        self._deadline_s = self.started_s + (float("inf") if timeout_s is None else timeout_s)
        self._timer = self._loop.call_later(self._next_check_s(), self._check)

    def output_came(self) -> None:
        """The idle time starts anew."""
        self._last_output_s = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _next_check_s(self) -> float:
        now_s = self._loop.time()
        limits = self._box.limits
        waits = [POLL_S, self._box.wall_left_s(), self._deadline_s - now_s]
        if self._idle_s is not None:
            waits.append(self._last_output_s + self._idle_s - now_s)
        if limits.cpu_s is not None:
            left_s = limits.cpu_s - self._box.cpu_used_s(self._box.counters())
            waits.append(max(0.02, left_s / limits.cpus))
        return max(0.001, min(waits))

    def _check(self) -> None:
        now_s = self._loop.time()
        limits = self._box.limits
        now = self._box.counters()
        if goes_for_memory(self._box, now):
            return
        if now_s >= self._deadline_s or self._box.wall_left_s() <= 0:
            self._on_over("wall")
        elif self._idle_s is not None and now_s - self._last_output_s >= self._idle_s:
            self._on_over("idle")
        elif limits.cpu_s is not None and self._box.cpu_used_s(now) >= limits.cpu_s:
            self._on_over("cpu")
        else:
            self._timer = self._loop.call_later(self._next_check_s(), self._check)
