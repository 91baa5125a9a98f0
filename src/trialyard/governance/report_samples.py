"""Which trajectories a report shows: solved at once, corrected after a failed try, the worst.

A sample is drawn from the newest records, so that a page about a long run stays cheap.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trialyard.core.ledger import TrajectoryRow
from trialyard.core.trajectory import Trajectory, Turn

RECENT = 3000
LOADED = 240
SHOWN = 2
_PASSED = re.compile(r"\b(?:passed )?(\d+) of (\d+)\b")


class StoredTrajectories(Protocol):
    """What a report needs of a trajectory store."""

    def rows(self) -> list[TrajectoryRow]:
        """Index entries in the order in which they were recorded."""

    def load(self, ids: Sequence[str]) -> list[Trajectory]:
        """Records in the order of `ids`."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Turn indices: where a try failed, and where the same thing passed later."""

    failed: int
    passed: int


@dataclass
class Samples:
    """Trajectories to show, and from how many they were chosen."""

    num_stored: int = 0
    best: list[Trajectory] = field(default_factory=list)
    corrected: list[Trajectory] = field(default_factory=list)
    worst: list[Trajectory] = field(default_factory=list)


def choose(store: StoredTrajectories) -> Samples:
    """A few telling records of the newest ones."""
    rows = store.rows()
    graded = [row for row in rows[-RECENT:] if row.reward is not None]
    stride = max(1, len(graded) // LOADED)
    records = store.load([row.id for row in graded[::-stride][:LOADED]])
    samples = Samples(num_stored=len(rows))
    used: set[str] = set()

    def take(candidates: list[Trajectory]) -> list[Trajectory]:
        """At most `SHOWN`, of different tasks, none shown twice."""
        taken: list[Trajectory] = []
        for record in candidates:
            if record.task_id not in used and len(taken) < SHOWN:
                used.add(record.task_id)
                taken.append(record)
        return taken

    solved = [t for t in records if t.verdict.passed]
    samples.corrected = take([t for t in solved if correction(t) is not None])
    samples.best = take(sorted(solved, key=lambda t: (-(t.reward or 0.0), len(t.turns))))
    failed = [t for t in records if not t.verdict.passed]
    samples.worst = take(sorted(failed, key=lambda t: (t.reward or 0.0, -len(t.turns))))
    return samples


def correction(trajectory: Trajectory) -> Correction | None:
    """A failing observation that later turned to passing; None when there is none."""
    for later in range(len(trajectory.turns) - 1, 0, -1):
        if turn_passed(trajectory.turns[later]) is not True:
            continue
        for earlier in range(later):
            if _mended(trajectory.turns[earlier], trajectory.turns[later]):
                return Correction(earlier, later)
    return None


def _mended(earlier: Turn, later: Turn) -> bool:
    if turn_passed(earlier) is not False:
        return False
    failing = {command.argv for command in earlier.commands if not _succeeded(command)}
    repeated = {command.argv for command in later.commands if _succeeded(command)}
    return not failing or bool(failing & repeated)


def turn_passed(turn: Turn) -> bool | None:
    """Whether a turn's observation says that its checks passed; None when it does not say.

    Commands count by their exit, visible checks by the counts in their feedback.
    """
    if turn.commands:
        return all(_succeeded(command) for command in turn.commands)
    if turn.observation.startswith("all visible checks passed"):
        return True
    counts = _PASSED.search(turn.observation)
    return None if counts is None else int(counts[1]) == int(counts[2])


def _succeeded(command: object) -> bool:
    return getattr(command, "status", "") == "exited" and getattr(command, "exit_code", 1) == 0
