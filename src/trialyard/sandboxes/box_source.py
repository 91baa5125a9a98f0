"""What a pool needs of whatever makes its boxes, and of the boxes."""

from dataclasses import dataclass
from typing import Protocol

from trialyard.core.image import Image
from trialyard.core.sandbox import BoxUser, Limits, Sandbox


@dataclass(frozen=True, slots=True)
class BoxKind:
    """Boxes of one kind are interchangeable as long as they are unused."""

    image: Image
    limits: Limits
    workdir: str
    user: BoxUser = "user"


class PooledBox(Sandbox, Protocol):
    """A box as its pool holds it."""

    @property
    def alive(self) -> bool:
        """False from the moment that the box ends, for whatever reason."""

    @property
    def leaked(self) -> bool:
        """After `close`: whether something of the box would not go."""

    def lend(self, owner: str, ttl_s: float) -> None:
        """From now on the box is `owner`'s and has `ttl_s` to live."""

    def destroy(self, why: str) -> None:
        """Kill all of the box now; `close` waits until it is gone."""


class BoxSource(Protocol):
    """Makes boxes on one host."""

    async def start(self, kind: BoxKind) -> PooledBox:
        """A fresh box. Raises `SandboxUnavailable` or `LimitUnsupported`."""

    async def close(self) -> bool:
        """Remove what the source made, after the last box; True when nothing is left."""
