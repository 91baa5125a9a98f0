"""The directory of blobs: corruption, interrupted writes, many writers."""

import os
import threading
from pathlib import Path

import pytest

from trialyard.core.errors import StoreError, UserError
from trialyard.core.ids import bytes_hash
from trialyard.storage.blobs import DirectoryBlobs


def _file_of(root: Path, digest: str) -> Path:
    return root / digest[:2] / digest[2:]


def test_a_flipped_bit_is_an_error_with_digest_and_cure_and_heals_on_put(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    digest = blobs.put(b"precious bytes")
    path = _file_of(tmp_path, digest)
    path.write_bytes(b"precious bytez")
    with pytest.raises(StoreError, match=rf"{digest} is corrupt.*store the same content"):
        blobs.get(digest)
    assert blobs.put(b"precious bytes") == digest
    assert blobs.get(digest) == b"precious bytes"


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = DirectoryBlobs(tmp_path)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(StoreError, match="No space left"):
            blobs.put(b"too much")
    assert not blobs.has(bytes_hash(b"too much"))
    assert list((tmp_path / "tmp").iterdir()) == []
    assert blobs.get(blobs.put(b"too much")) == b"too much"


def test_old_leftovers_go_and_young_ones_stay(tmp_path: Path) -> None:
    DirectoryBlobs(tmp_path)
    old, young = tmp_path / "tmp" / "a.tmp", tmp_path / "tmp" / "b.tmp"
    for path in (old, young):
        path.write_bytes(b"part")
    os.utime(old, (0, 0))
    DirectoryBlobs(tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_reader_sees_whole_blobs_only_while_many_write(tmp_path: Path) -> None:
    contents = [bytes([n]) * 200_000 for n in range(4)]
    problems: list[BaseException] = []

    def write() -> None:
        try:
            store = DirectoryBlobs(tmp_path)
            for data in contents * 3:
                assert store.get(store.put(data)) == data
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "AB" * 32, "0" * 63])
def test_only_digests_name_files(tmp_path: Path, digest: str) -> None:
    with pytest.raises(UserError, match="not a digest"):
        DirectoryBlobs(tmp_path).get(digest)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        DirectoryBlobs(tmp_path / "file")
