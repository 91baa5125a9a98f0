"""Grading: a submission goes in, a verdict with its evidence comes out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import Field, model_validator

from trialyard.core.ids import content_hash, tree_hash
from trialyard.core.record import Record
from trialyard.core.task import Task

Fault = Literal["none", "model", "environment", "task"]
Trust = Literal["separated", "hardened", "live"]
TestStatus = Literal[
    "passed", "failed", "error", "skipped", "xfailed", "xpassed", "timeout", "not_run"
]


@dataclass(frozen=True, slots=True)
class Submission:
    """What is graded: changed files below the workdir (and artifacts), and the answer.

    `files` maps paths (relative to the workdir, or absolute for artifacts) to content;
    None means removed.
    """

    files: Mapping[str, bytes | None] = field(default_factory=dict)
    final_answer: str = ""
    trajectory: str = ""

    @property
    def diff_hash(self) -> str:
        """Content hash of the changes: equal answers, equal hash."""
        kept = {path: data for path, data in self.files.items() if data is not None}
        removed = sorted(path for path, data in self.files.items() if data is None)
        return content_hash([tree_hash(kept), removed, self.final_answer])


class TestResult(Record):
    """Outcome of one test or case."""

    __test__ = False  # the name is no invitation to pytest

    id: str
    status: TestStatus
    duration_s: float = Field(default=0.0, ge=0)
    message: str = ""


class CheckResult(Record):
    """Finding of one check; `score` is None when the check could not be run."""

    name: str
    kind: str
    weight: float
    score: float | None = Field(ge=0, le=1)
    passed: bool
    evidence: str = ""


class TamperFinding(Record):
    """One sign of cheating."""

    kind: str
    path: str = ""
    evidence: str = ""


class Verdict(Record):
    """The full finding about one submission (DESIGN 4.3).

    Invariant: `reward` is None exactly when `status` is ``ungraded``, and a fault of
    the environment or of the task is always ``ungraded``.
    """

    status: Literal["graded", "ungraded"]
    fault: Fault
    trust: Trust
    reward: float | None = Field(default=None, ge=0, le=1)
    passed: bool = False
    reason: str = ""
    checks: tuple[CheckResult, ...] = ()
    tests: tuple[TestResult, ...] = ()
    tampering: tuple[TamperFinding, ...] = ()
    usage: dict[str, float] = Field(default_factory=dict)
    task_hash: str = ""
    image_digest: str = ""
    grader_version: str = ""
    seed: int = 0

    @model_validator(mode="after")
    def _reward_matches_status(self) -> "Verdict":
        if (self.status == "ungraded") != (self.reward is None):
            raise ValueError("reward must be None exactly when status is 'ungraded'")
        if self.fault in ("environment", "task") and self.status != "ungraded":
            raise ValueError(f"fault {self.fault!r} must be 'ungraded'")
        return self

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class Grader(Protocol):
    """Judges a submission by running it in a fresh box."""

    async def grade(self, task: Task, submission: Submission, *, seed: int = 0) -> Verdict:
        """Never raises for what the submission does. A broken machine is ``ungraded``."""
