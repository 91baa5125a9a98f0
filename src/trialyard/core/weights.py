"""Weights: versioned, content-addressed, published atomically."""

from collections.abc import Sequence
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

    def rollback(self, version: int) -> int:
        """Forget every version after `version`; return how many went."""

    def prune(self, *, keep: int) -> int:
        """Drop all but the newest `keep` versions and pinned ones; return how many went."""


class WeightTable(Protocol):
    """What a weight store needs of a ledger: the durable list of versions."""

    def add_weights(self, version: WeightVersion) -> None:
        """Record a version durably. Raises `StoreError` if its number is taken."""

    def weights(self) -> list[WeightVersion]:
        """Recorded versions, oldest first."""

    def remove_weights(self, versions: Sequence[int]) -> None:
        """Forget versions; unknown ones are fine."""

    def pin_weights(self, version: int, *, pinned: bool) -> None:
        """Protect a version from pruning, or stop protecting it."""

    def pinned_weights(self) -> frozenset[int]:
        """Versions that pruning leaves alone."""
