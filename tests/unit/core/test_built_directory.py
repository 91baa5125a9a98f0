"""Case 49: a cache entry that many fill at once while one of them is killed."""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from trialyard.core.built_directory import built_directory

FILES = 40


def fill(directory: Path, pause_s: float = 0.002) -> None:
    for number in range(FILES):
        (directory / "sub").mkdir(exist_ok=True)
        (directory / "sub" / str(number)).write_text(f"{number} " * 50)
        time.sleep(pause_s)


def fill_and_die(directory: Path) -> None:
    fill(directory, 0.03)
    os.kill(os.getpid(), signal.SIGKILL)


def content(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (directory / "sub").iterdir()}


WHOLE = {str(number): f"{number} " * 50 for number in range(FILES)}


def worker(target: str, dies: bool, seen: "multiprocessing.Queue[bool]") -> None:
    found = built_directory(Path(target), fill_and_die if dies else fill)
    seen.put(content(found) == WHOLE)


def private_places(parent: Path) -> list[str]:
    return [path.name for path in parent.iterdir() if path.name not in ("entry", ".lock")]


def test_case_49_cache_filled_by_many_and_one_dies(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    seen: multiprocessing.Queue[bool] = context.Queue()
    target = tmp_path / "entry"
    workers = [context.Process(target=worker, args=(str(target), i == 0, seen)) for i in range(5)]
    workers[0].start()
    while not private_places(tmp_path):  # the victim is at it before the others come
        time.sleep(0.002)
    for process in workers[1:]:
        process.start()
    for process in workers:
        process.join(60)
    assert [process.exitcode for process in workers] == [-signal.SIGKILL, 0, 0, 0, 0]
    assert [seen.get(timeout=5) for _ in range(4)] == [True] * 4
    shutil.rmtree(target)
    built_directory(target, fill)  # sweeps what the victim left, if nobody did
    assert private_places(tmp_path) == []
    assert content(target) == WHOLE


def test_what_is_there_is_not_built_again_and_what_is_damaged_is(tmp_path: Path) -> None:
    target = built_directory(tmp_path / "entry", fill)

    def never(_: Path) -> None:
        raise AssertionError("it is whole")

    assert built_directory(target, never) == target
    (target / "sub" / "7").write_text("cut")
    built_directory(target, fill)
    assert content(target) == WHOLE
    (target / "sub" / "8").unlink()
    built_directory(target, fill)
    assert content(target) == WHOLE
    (target / ".manifest.json").write_text("{")
    built_directory(target, fill)
    assert content(target) == WHOLE


def test_a_build_that_fails_leaves_nothing_and_harms_no_other(tmp_path: Path) -> None:
    def broken(directory: Path) -> None:
        (directory / "x").write_text("x")
        raise RuntimeError("no")

    good = built_directory(tmp_path / "entry", fill)
    with pytest.raises(RuntimeError, match="no"):
        built_directory(tmp_path / "other", broken)
    assert private_places(tmp_path) == []
    assert content(good) == WHOLE


def test_clearing_the_cache_while_others_build_breaks_none(tmp_path: Path) -> None:
    results: list[bool] = []

    def build() -> None:
        built_directory(tmp_path / "entry", fill)
        results.append(True)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        time.sleep(0.01)
        shutil.rmtree(tmp_path / "entry", ignore_errors=True)
    for thread in threads:
        thread.join(30)
    assert results == [True] * 4
    assert content(built_directory(tmp_path / "entry", fill)) == WHOLE
    assert private_places(tmp_path) == []
