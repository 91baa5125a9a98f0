"""Leases of owners far away: a box whose owner falls silent goes before its deadline.

An owner in the same process needs none (its end takes the pool along). Silence is measured
here, by this machine's clock.
"""

import asyncio
from collections.abc import Callable

from trialyard.core.errors import UserError


class Heartbeats:
    """Timers of the watched leases of one pool, in one event loop."""

    def __init__(self) -> None:
        self._watched: dict[str, tuple[float, Callable[[], None], asyncio.TimerHandle]] = {}

    def watch(self, box: str, every_s: float, on_silence: Callable[[], None]) -> None:
        """Call `on_silence` once when no `beat` comes for `every_s`."""
        if not every_s > 0:
            raise UserError(f"every_s {every_s!r}: must be positive")
        self.forget(box)
        timer = asyncio.get_running_loop().call_later(every_s, on_silence)
        self._watched[box] = (every_s, on_silence, timer)

    def beat(self, box: str) -> None:
        """The owner is alive; nothing happens for a box that is not watched."""
        if box in self._watched:
            every_s, on_silence, _ = self._watched[box]
            self.watch(box, every_s, on_silence)

    def forget(self, box: str) -> None:
        """The lease is over."""
        watched = self._watched.pop(box, None)
        if watched is not None:
            watched[2].cancel()
