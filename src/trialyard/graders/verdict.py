"""Findings become a verdict: rubric, tampering, fault."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trialyard.core.grader import TamperFinding, Trust, Verdict
from trialyard.core.task import Task
from trialyard.graders.finding import Finding, total_usage
from trialyard.graders.rubric import all_required_passed, reward_of
from trialyard.graders.workspace import Workspace

Identity = Mapping[str, Any]
"""task_hash, image_digest, grader_version and seed, as far as they are known."""


def verdict_of(
    task: Task, workspace: Workspace, findings: Sequence[Finding], identity: Identity
) -> Verdict:
    """The verdict of a grading that ran; a check without a score leaves it ungraded."""
    checks = task.hidden_checks
    results = tuple(f.result(check) for f, check in zip(findings, checks, strict=True))
    tampering = _tampering(workspace, findings)
    details: dict[str, Any] = {
        **identity,
        "trust": _trust(findings),
        "checks": results,
        "tests": tuple(test for finding in findings for test in finding.tests),
        "tampering": tampering,
        "usage": total_usage([usage for finding in findings for usage in finding.usages]),
    }
    unscored = next((result for result in results if result.score is None), None)
    action = task.spec.rubric.tamper if tampering else "report"
    if action == "zero":
        reason = f"tampering: {tampering[0].kind} {tampering[0].path}".rstrip()
        return Verdict(status="graded", fault="model", reward=0.0, reason=reason, **details)
    if action == "ungraded":
        return Verdict(status="ungraded", fault="model", reason="tampering", **details)
    if unscored is not None:
        reason = f"check {unscored.name!r}: {unscored.evidence}"
        return Verdict(status="ungraded", fault="environment", reason=reason, **details)
    return Verdict(
        status="graded",
        fault="none",
        reward=reward_of(task.spec.rubric, checks, results),
        passed=all_required_passed(checks, results),
        **details,
    )


def zero(task: Task, workspace: Workspace, reason: str, identity: Identity) -> Verdict:
    """The model's own doing kept every check from running: graded, reward 0."""
    findings = [
        Finding(score=0.0, passed=False, trust="separated", evidence=reason)
        for _ in task.hidden_checks
    ]
    checks = tuple(f.result(c) for f, c in zip(findings, task.hidden_checks, strict=True))
    return Verdict(
        status="graded",
        fault="model",
        trust="separated",
        reward=0.0,
        reason=reason,
        checks=checks,
        tampering=workspace.findings,
        usage=total_usage([]),
        **identity,
    )


def ungraded(fault: Literal["environment", "task"], reason: str, identity: Identity) -> Verdict:
    """Grading could not be done, and it was not the submission's doing."""
    return Verdict(status="ungraded", fault=fault, trust="separated", reason=reason, **identity)


def _trust(findings: Sequence[Finding]) -> Trust:
    """A verdict is no more trustworthy than its weakest check."""
    return "separated" if all(f.trust == "separated" for f in findings) else "hardened"


def _tampering(workspace: Workspace, findings: Sequence[Finding]) -> tuple[TamperFinding, ...]:
    found = [*workspace.findings, *(t for finding in findings for t in finding.tampering)]
    return tuple(dict.fromkeys(found))
