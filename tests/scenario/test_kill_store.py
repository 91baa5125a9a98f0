"""kill -9 at random moments of one run: what was acknowledged is there, once, and used once.

A child process (this file run as a program) opens the run, appends groups, commits
checkpoints and seals segments, saying before and after what it does. It is killed,
the run is checked, and the next child goes on in the same directory.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.records import trajectory_of
from trialyard.core.ledger import CheckpointRow
from trialyard.core.trajectory import Trajectory
from trialyard.storage.blobs import DirectoryBlobs
from trialyard.storage.ledger import SqlLedger
from trialyard.trajectories.store import TrajectoryStore
from trialyard.weights.versions import WeightVersions

ROOT = Path(__file__).parents[2]
KILLS = 20
GROUP = 4


def record_of(id: str) -> Trajectory:
    """The one content that an id can have."""
    member = int(id.rsplit("/")[-1])
    return trajectory_of(id, group=id.rsplit("/", 1)[0], member=member, reward=member / GROUP)


def say(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


def write_for_ever(directory: Path, life: str) -> None:
    """One life of the run: open, go back to the last checkpoint, append and commit."""
    ledger = SqlLedger(directory / "ledger.sqlite")
    store = TrajectoryStore(directory / "trajectories", ledger)
    blobs = DirectoryBlobs(directory / "blobs")
    weights = WeightVersions(blobs, ledger)
    last = ledger.last_checkpoint()
    step = 0 if last is None else last.step
    weights.rollback(step)
    waiting = [row.id for row in ledger.trajectories("stored")]
    for number in range(10**9):
        ids = [f"{life}/{number}/{member}" for member in range(GROUP)]
        say("appending", *ids)
        store.append([record_of(id_) for id_ in ids])
        say("stored", *ids)
        waiting += ids
        if number % 3 == 2:
            step += 1
            used, waiting = waiting[:6], waiting[6:]
            say("committing", str(step), *used)
            weights.publish(b"weights %d" % step, version=step, step=step)
            row = CheckpointRow(step, step, blobs.put(b"state %d" % step))
            ledger.checkpoint(row, consumed=[(id_, step) for id_ in used], dropped=[])
            say("committed", str(step))
        if number % 7 == 6:
            store.seal()


def fork_writers() -> None:
    """Fork a writer for each line of stdin: a process that has imported everything."""
    for line in sys.stdin:
        directory, life = line.split()
        child = os.fork()
        if child == 0:
            write_for_ever(Path(directory), life)
        say("pid", str(child))
        os.waitpid(child, 0)
        say("dead")


class History:
    """What the lives said they did."""

    def __init__(self) -> None:
        self.appending: set[str] = set()
        self.stored: set[str] = set()
        self.committing: dict[int, list[str]] = {}
        self.committed = 0

    def read(self, line: str) -> None:
        verb, *words = line.split()
        if verb == "appending":
            self.appending |= set(words)
        elif verb == "stored":
            self.stored |= set(words)
        elif verb == "committing":
            self.committing[int(words[0])] = words[1:]
        elif verb == "committed":
            self.committed = int(words[0])


@pytest.fixture
def writers() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.scenario.test_kill_store"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def live_and_die(
    writers: subprocess.Popen[str], directory: Path, life: int, history: History, rng: random.Random
) -> None:
    """Kill a writer after a random number of its words and a random moment more."""
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write(f"{directory} {life}\n")
    writers.stdin.flush()
    said = writers.stdout.readline().split()
    assert said[0] == "pid"
    for _ in range(rng.randrange(30)):
        history.read(writers.stdout.readline())
    time.sleep(rng.uniform(0, 0.01))
    os.kill(int(said[1]), signal.SIGKILL)
    while (line := writers.stdout.readline()) != "dead\n":
        assert line, "the forking process died"
        history.read(line)


def check(directory: Path, history: History) -> None:
    with SqlLedger(directory / "ledger.sqlite") as ledger:
        store = TrajectoryStore(directory / "trajectories", ledger)
        found = list(store.iter())
        ids = [trajectory.id for trajectory in found]
        assert len(ids) == len(set(ids)), "a trajectory is there twice"
        assert history.stored <= set(ids) <= history.appending
        assert found == [record_of(id_) for id_ in ids]
        last = ledger.last_checkpoint()
        step = 0 if last is None else last.step
        assert history.committed <= step <= history.committed + 1
        consumed = {row.id: row.consumed_step for row in ledger.trajectories("consumed")}
        assert consumed == {
            id_: number
            for number, used in history.committing.items()
            if number <= step
            for id_ in used
        }
        if last is not None:
            blobs = DirectoryBlobs(directory / "blobs")
            assert blobs.get(last.state_digest) == b"state %d" % step
            weights = WeightVersions(blobs, ledger).fetch(last.weight_version)
            assert weights == b"weights %d" % step
        history.committed = step


def test_what_was_acknowledged_survives_kills_exactly_once(
    tmp_path: Path, writers: subprocess.Popen[str]
) -> None:
    rng = random.Random(7)
    history = History()
    for life in range(KILLS):
        live_and_die(writers, tmp_path, life, history, rng)
        if (tmp_path / "ledger.sqlite").exists():
            check(tmp_path, history)
    assert len(history.stored) > KILLS * GROUP
    assert history.committed > 5


if __name__ == "__main__":
    fork_writers()
