"""Weight versions: bytes in the blob store, the list of versions in the ledger.

A version exists from the moment its row is committed; its blob is durable before that
and goes only after the row. Numbers grow by exactly one; a repeated publish of equal
bytes is the same publish (a lost reply changes nothing).
"""

import threading

from trialyard.core.blobs import BlobStore
from trialyard.core.errors import NotFoundError, StoreError, UserError
from trialyard.core.ids import bytes_hash
from trialyard.core.weights import WeightTable, WeightVersion


class WeightVersions:
    """`WeightStore` over a blob store and the ledger's table."""

    def __init__(self, blobs: BlobStore, table: WeightTable) -> None:
        self._blobs = blobs
        self._table = table
        self._guard = threading.RLock()

    def publish(self, weights: bytes, *, version: int, step: int) -> WeightVersion:
        published = WeightVersion(version, bytes_hash(weights), step)
        with self._guard:
            known = self._known()
            if version in known:
                return self._repeated(known[version], published)
            newest = max(known, default=None)
            if version < 0 or (newest is not None and version != newest + 1):
                raise StoreError(
                    f"weight version {version} refused: versions grow by one and the newest is "
                    f"{newest}; publish {0 if newest is None else newest + 1}, or roll back first"
                )
            self._blobs.put(weights)
            self._table.add_weights(published)
        return published

    def fetch(self, version: int) -> bytes:
        found = self._known().get(version)
        if found is None:
            raise NotFoundError(f"weight version {version} was never published or is pruned")
        try:
            return self._blobs.get(found.digest)
        except NotFoundError as error:
            raise StoreError(
                f"weight version {version} lost its bytes: {error}; publish it again or restore "
                "the blob from a copy"
            ) from error

    def latest(self) -> WeightVersion | None:
        known = self._known()
        return known[max(known)] if known else None

    def prune(self, *, keep: int) -> int:
        if keep < 1:
            raise UserError(f"keep is {keep}; at least the newest version stays")
        with self._guard:
            pinned = self._table.pinned_weights()
            oldest_first = self._table.weights()
            going = [v.version for v in oldest_first[:-keep] if v.version not in pinned]
            return self._remove(going)

    def rollback(self, version: int) -> int:
        """Forget every version after `version` (they belong to steps after the checkpoint).

        Returns how many went. Pinned ones go too: they name a history that is lost.
        """
        with self._guard:
            return self._remove([number for number in self._known() if number > version])

    def pin(self, version: int) -> None:
        """Protect a version from pruning. Raises `NotFoundError`."""
        if version not in self._known():
            raise NotFoundError(f"weight version {version} cannot be pinned: it is not there")
        self._table.pin_weights(version, pinned=True)

    def unpin(self, version: int) -> None:
        """Stop protecting a version; fine if it was not."""
        self._table.pin_weights(version, pinned=False)

    def _known(self) -> dict[int, WeightVersion]:
        return {found.version: found for found in self._table.weights()}

    def _repeated(self, known: WeightVersion, again: WeightVersion) -> WeightVersion:
        if known.digest != again.digest:
            raise StoreError(
                f"weight version {again.version} is already published with other bytes "
                f"({known.digest[:12]}, not {again.digest[:12]}); publish a new version, or call "
                "`rollback` with the checkpoint's version when a run goes on from it"
            )
        return known

    def _remove(self, versions: list[int]) -> int:
        known = self._known()
        self._table.remove_weights(versions)
        kept = {found.digest for number, found in known.items() if number not in set(versions)}
        for digest in {known[number].digest for number in versions} - kept:
            self._blobs.remove(digest)
        return len(versions)
