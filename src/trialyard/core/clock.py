"""Time as an argument: whoever waits or stamps takes a `Clock`."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Source of time. Durations come from `monotonic_s`, stamps from `wall_s`."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary origin; never steps back."""

    def wall_s(self) -> float:
        """Seconds since the Unix epoch; may step."""

    async def sleep(self, duration_s: float) -> None:
        """Return after `duration_s` of this clock's time."""


class SystemClock:
    """The machine's clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)
