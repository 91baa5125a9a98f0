"""Weights: versioned, content-addressed, published atomically."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """One published version: integer +1 per publish, digest of its safetensors bytes."""

    version: int
    digest: str
    step: int


class WeightStore(Protocol):
    """Keeps published versions until they are pruned."""

    def publish(self, weights: bytes, *, version: int, step: int) -> WeightVersion:
        """Store and name `version`. Publishing the same version again with equal bytes is fine."""

    def fetch(self, version: int) -> bytes:
        """Bytes of a version, verified by digest. Raises `NotFoundError` or `StoreError`."""

    def latest(self) -> WeightVersion | None:
        """Newest published version."""

    def prune(self, *, keep: int) -> int:
        """Drop all but the newest `keep` versions and pinned ones; return how many went."""
