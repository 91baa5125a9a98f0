"""What a command sees of its box."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from trialyard.core.sandbox import Limits

OUT_OF_MEMORY = "it ran out of memory"
HOST_OUT_OF_MEMORY = "the host ran out of memory, and its kernel killed processes of the box"


@dataclass(frozen=True, slots=True)
class Counters:
    """Box-wide counts at one moment."""

    cpu_us: int
    oom_kills: int
    """Because the box was at its limit of memory."""
    host_oom_kills: int
    """Because memory ran out on the host, or in a group around the boxes."""
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
    def destroy(self, why: str, *, host_evidence: str = "") -> None: ...


def goes_for_memory(box: BoxView, now: Counters) -> bool:
    """Destroys the box if the kernel killed some of it for want of memory; whether it did."""
    if now.oom_kills > 0:
        box.destroy(OUT_OF_MEMORY)
    elif now.host_oom_kills > 0:
        box.destroy(HOST_OUT_OF_MEMORY, host_evidence=HOST_OUT_OF_MEMORY)
    return now.oom_kills > 0 or now.host_oom_kills > 0
