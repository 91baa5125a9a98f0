"""What every blob store promises."""

import hashlib
from pathlib import Path

import pytest

from trialyard.core.blobs import BlobStore
from trialyard.core.errors import NotFoundError
from trialyard.storage.blobs import DirectoryBlobs
from trialyard.testing.storage import MemoryBlobs


@pytest.fixture(params=["directory", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return DirectoryBlobs(tmp_path / "blobs") if request.param == "directory" else MemoryBlobs()


@pytest.mark.parametrize("data", [b"", b"\x00\xff" * 1000, b"x" * 3_000_000])
def test_bytes_come_back_under_their_sha256(blobs: BlobStore, data: bytes) -> None:
    digest = blobs.put(data)
    assert digest == hashlib.sha256(data).hexdigest()
    assert blobs.has(digest)
    assert blobs.get(digest) == data


def test_equal_bytes_are_one_blob(blobs: BlobStore) -> None:
    first, second = blobs.put(b"same"), blobs.put(b"same")
    assert first == second
    blobs.remove(first)
    assert not blobs.has(second)


def test_a_missing_blob_is_not_found_and_may_be_removed(blobs: BlobStore) -> None:
    digest = hashlib.sha256(b"never stored").hexdigest()
    assert not blobs.has(digest)
    with pytest.raises(NotFoundError, match=digest):
        blobs.get(digest)
    blobs.remove(digest)


def test_a_removed_blob_can_be_stored_again(blobs: BlobStore) -> None:
    digest = blobs.put(b"again")
    blobs.remove(digest)
    assert blobs.put(b"again") == digest
    assert blobs.get(digest) == b"again"
