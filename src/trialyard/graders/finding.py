"""What a check is given and what it found; one shape for every kind of check."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trialyard.core.cases import Case
from trialyard.core.clock import Clock
from trialyard.core.grader import CheckResult, TamperFinding, TestResult, Trust
from trialyard.core.sandbox import ExecUsage
from trialyard.core.task import Check, Task

EVIDENCE_CHARS = 500


@dataclass(frozen=True, slots=True)
class GradingRun:
    """What the checks of one box share. `deadline_s` is on the grader's clock."""

    task: Task
    seed: int
    clock: Clock
    deadline_s: float
    cases: Mapping[str, tuple[Case, ...]] = field(default_factory=dict)
    """Cases by the name of their values check, expected values resolved."""

    def left_s(self) -> float:
        """Seconds that grading may still take."""
        return max(0.0, self.deadline_s - self.clock.monotonic_s())


@dataclass(frozen=True, slots=True)
class Finding:
    """`score` None: the check could not be run, and `evidence` says why."""

    score: float | None
    passed: bool
    trust: Trust
    evidence: str = ""
    tests: tuple[TestResult, ...] = ()
    tampering: tuple[TamperFinding, ...] = ()
    usages: tuple[ExecUsage, ...] = ()

    def result(self, check: Check) -> CheckResult:
        """The part of the verdict that speaks of `check`."""
        return CheckResult(
            name=check.name,
            kind=check.kind,
            weight=check.weight,
            score=self.score,
            passed=self.passed,
            evidence=self.evidence[:EVIDENCE_CHARS],
        )


def total_usage(usages: list[ExecUsage]) -> dict[str, float]:
    """Sums of times and bytes, maxima of peaks, and the number of commands."""
    return {
        "commands": float(len(usages)),
        "wall_s": sum(usage.wall_s for usage in usages),
        "cpu_s": sum(usage.cpu_s for usage in usages),
        "memory_peak_bytes": float(max((usage.memory_peak_bytes for usage in usages), default=0)),
        "pids_peak": float(max((usage.pids_peak for usage in usages), default=0)),
        "read_bytes": float(sum(usage.read_bytes for usage in usages)),
        "written_bytes": float(sum(usage.written_bytes for usage in usages)),
    }
