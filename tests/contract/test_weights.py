"""What every weight store promises."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from trialyard.core.errors import NotFoundError, StoreError, UserError
from trialyard.core.ids import bytes_hash
from trialyard.core.weights import WeightVersion
from trialyard.storage.blobs import DirectoryBlobs
from trialyard.storage.ledger import SqlLedger
from trialyard.testing.storage import MemoryWeights
from trialyard.weights.versions import WeightVersions

Weights = WeightVersions | MemoryWeights


@pytest.fixture(params=["ledger", "memory"])
def weights(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Weights]:
    if request.param == "memory":
        yield MemoryWeights()
        return
    with SqlLedger(tmp_path / "ledger.sqlite") as ledger:
        yield WeightVersions(DirectoryBlobs(tmp_path / "blobs"), ledger)


def _publish(weights: Weights, versions: range) -> None:
    for version in versions:
        weights.publish(b"weights %d" % version, version=version, step=version * 2)


def test_a_published_version_comes_back(weights: Weights) -> None:
    assert weights.latest() is None
    made = weights.publish(b"first", version=0, step=0)
    assert made == WeightVersion(0, bytes_hash(b"first"), 0)
    assert weights.latest() == made
    assert weights.fetch(0) == b"first"


def test_versions_grow_by_exactly_one(weights: Weights) -> None:
    _publish(weights, range(3, 5))
    for version in (6, 2, 0, -1):
        with pytest.raises(StoreError, match="refused"):
            weights.publish(b"x", version=version, step=9)
    assert weights.latest() == WeightVersion(4, bytes_hash(b"weights 4"), 8)


def test_publishing_again_is_fine_with_equal_bytes_only(weights: Weights) -> None:
    _publish(weights, range(2))
    first = weights.publish(b"weights 1", version=1, step=2)
    assert first == weights.latest()
    with pytest.raises(StoreError, match=r"already published|is published"):
        weights.publish(b"other", version=1, step=2)
    assert weights.fetch(1) == b"weights 1"


def test_prune_keeps_the_newest_and_the_pinned(weights: Weights) -> None:
    _publish(weights, range(6))
    weights.pin(1)
    assert weights.prune(keep=2) == 3
    assert [v for v in range(6) if _is_there(weights, v)] == [1, 4, 5]
    assert weights.prune(keep=2) == 0
    weights.unpin(1)
    assert weights.prune(keep=1) == 2
    latest = weights.latest()
    assert latest is not None
    assert latest.version == 5
    with pytest.raises(UserError, match="at least the newest"):
        weights.prune(keep=0)


def test_a_pruned_or_unknown_version_is_not_found(weights: Weights) -> None:
    _publish(weights, range(2))
    weights.prune(keep=1)
    for version in (0, 7):
        with pytest.raises(NotFoundError, match=str(version)):
            weights.fetch(version)
        with pytest.raises(NotFoundError, match="cannot be pinned"):
            weights.pin(version)


def test_rollback_forgets_what_came_after_the_checkpoint(weights: Weights) -> None:
    _publish(weights, range(5))
    weights.pin(4)
    assert weights.rollback(2) == 2
    latest = weights.latest()
    assert latest is not None
    assert latest.version == 2
    weights.publish(b"another history", version=3, step=6)
    assert weights.fetch(3) == b"another history"
    assert weights.rollback(3) == 0


def test_two_versions_with_equal_bytes_are_pruned_one_by_one(weights: Weights) -> None:
    for version in range(2):
        weights.publish(b"unchanged", version=version, step=version)
    assert weights.prune(keep=1) == 1
    assert weights.fetch(1) == b"unchanged"


def _is_there(weights: Weights, version: int) -> bool:
    try:
        weights.fetch(version)
    except NotFoundError:
        return False
    return True
