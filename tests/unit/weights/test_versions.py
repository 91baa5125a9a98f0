"""Weight versions between blob store and ledger: order of writes, corruption."""

from pathlib import Path

import pytest

from trialyard.core.errors import StoreError
from trialyard.core.weights import WeightVersion
from trialyard.storage.blobs import DirectoryBlobs
from trialyard.storage.ledger import SqlLedger
from trialyard.weights.versions import WeightVersions


class _Breaks(Exception):
    pass


def test_a_version_without_its_row_was_never_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    with SqlLedger(tmp_path / "ledger.sqlite") as ledger:
        weights = WeightVersions(blobs, ledger)

        def breaks(version: WeightVersion) -> None:
            raise _Breaks

        with monkeypatch.context() as patch:
            patch.setattr(ledger, "add_weights", breaks)
            with pytest.raises(_Breaks):
                weights.publish(b"half", version=0, step=0)
        assert weights.latest() is None
        assert weights.publish(b"whole", version=0, step=0).version == 0


def test_a_prune_that_dies_half_way_leaves_no_row_without_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    with SqlLedger(tmp_path / "ledger.sqlite") as ledger:
        weights = WeightVersions(blobs, ledger)
        for version in range(3):
            weights.publish(b"%d" % version, version=version, step=version)

        def breaks(digest: str) -> None:
            raise _Breaks

        with monkeypatch.context() as patch:
            patch.setattr(blobs, "remove", breaks)
            with pytest.raises(_Breaks):
                weights.prune(keep=1)
        assert all(blobs.has(version.digest) for version in ledger.weights())
        assert weights.fetch(2) == b"2"


def test_corrupt_and_lost_bytes_are_store_errors(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    with SqlLedger(tmp_path / "ledger.sqlite") as ledger:
        weights = WeightVersions(blobs, ledger)
        digest = weights.publish(b"weights", version=0, step=0).digest
        path = tmp_path / "blobs" / digest[:2] / digest[2:]
        path.write_bytes(b"wrights")
        with pytest.raises(StoreError, match="corrupt"):
            weights.fetch(0)
        path.unlink()
        with pytest.raises(StoreError, match="version 0 lost its bytes"):
            weights.fetch(0)


def test_versions_and_pins_outlive_the_process(tmp_path: Path) -> None:
    for _ in range(2):
        with SqlLedger(tmp_path / "ledger.sqlite") as ledger:
            weights = WeightVersions(DirectoryBlobs(tmp_path / "blobs"), ledger)
            for version in range(4):
                weights.publish(b"%d" % version, version=version, step=version)
            weights.pin(0)
    with SqlLedger(tmp_path / "ledger.sqlite") as ledger:
        weights = WeightVersions(DirectoryBlobs(tmp_path / "blobs"), ledger)
        assert weights.prune(keep=1) == 2
        assert weights.fetch(0) == b"0"
