"""The attempts of one box to reach something through its proxy."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trialyard.core.network import NetworkAttempt, NetworkProtocol, Verdict

KEPT = 1000


class Counted(Protocol):
    """The connection of an attempt, with the bytes so far."""

    sent_bytes: int
    received_bytes: int


@dataclass(slots=True)
class Attempt:
    """One attempt, maybe under way; see `NetworkAttempt`."""

    time_s: float
    protocol: NetworkProtocol = "unknown"
    host: str = ""
    port: int = 0
    address: str = ""
    verdict: Verdict = "invalid"
    reason: str = ""
    counts: Counted | None = None

    def as_it_is(self) -> NetworkAttempt:
        return NetworkAttempt(
            time_s=self.time_s,
            protocol=self.protocol,
            host=self.host,
            port=self.port,
            address=self.address,
            verdict=self.verdict,
            reason=self.reason,
            sent_bytes=self.counts.sent_bytes if self.counts else 0,
            received_bytes=self.counts.received_bytes if self.counts else 0,
        )


class NetworkLog:
    """The first and the latest attempts: a flood cannot push the first ones out."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._first: list[Attempt] = []
        self._latest: deque[Attempt] = deque(maxlen=KEPT // 2)

    def begin(self) -> Attempt:
        attempt = Attempt(self._clock())
        kept = self._first if len(self._first) < KEPT // 2 else self._latest
        kept.append(attempt)
        return attempt

    def attempts(self) -> tuple[NetworkAttempt, ...]:
        """Oldest first, at most `KEPT`."""
        return tuple(attempt.as_it_is() for attempt in (*self._first, *self._latest))
