"""What a command sees of its box."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from trialyard.core.sandbox import Limits


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
    def not_enforced(self) -> frozenset[str]: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def counters(self) -> Counters: ...
    def peaks(self) -> tuple[int, int]: ...
    def full(self) -> frozenset[str]: ...
    def wall_left_s(self) -> float: ...
    def cpu_used_s(self, now: Counters) -> float: ...
    def destroy(self, why: str) -> None: ...
