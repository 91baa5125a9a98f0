"""The rubric: check results become one reward in [0, 1], by documented shapes only.

A check without a score means that grading could not be done: no reward comes of it.
NaN and infinities are refused here and again by the verdict's own record.
"""

import math
from collections.abc import Sequence

from trialyard.core.errors import GraderError
from trialyard.core.grader import CheckResult
from trialyard.core.task import Check, Rubric


def reward_of(rubric: Rubric, checks: Sequence[Check], results: Sequence[CheckResult]) -> float:
    """Reward of the hidden checks; `results` lies in the order of `checks`.

    reward = (1 - b) * score + b * solved, where `solved` is 1 when every check passed
    and b is `solved_bonus`; then a failed required check or a reward below `threshold`
    makes it 0. Raises `GraderError` for a missing or unsound score.
    """
    scores = [_sound(result) for result in results]
    solved = bool(results) and all(result.passed for result in results)
    score = _combined(rubric, checks, scores, solved=solved)
    reward = (1.0 - rubric.solved_bonus) * score + rubric.solved_bonus * float(solved)
    required_hold = all(
        result.passed for check, result in zip(checks, results, strict=True) if check.required
    )
    if not required_hold or reward < rubric.threshold:
        return 0.0
    return min(1.0, max(0.0, reward))


def all_required_passed(checks: Sequence[Check], results: Sequence[CheckResult]) -> bool:
    """Whether every required check passed; where none is marked required, every check."""
    pairs = list(zip(checks, results, strict=True))
    required = [result for check, result in pairs if check.required]
    judged = required or [result for _, result in pairs]
    return bool(judged) and all(result.passed for result in judged)


def _sound(result: CheckResult) -> float:
    if result.score is None:
        raise GraderError(f"check {result.name!r} has no score: {result.evidence}")
    if not math.isfinite(result.score) or not 0.0 <= result.score <= 1.0:
        raise GraderError(f"check {result.name!r} has score {result.score!r}, not in [0, 1]")
    return result.score


def _combined(
    rubric: Rubric, checks: Sequence[Check], scores: Sequence[float], *, solved: bool
) -> float:
    if rubric.combine == "all":
        return float(solved)
    weighted = [
        (check.weight, score) for check, score in zip(checks, scores, strict=True) if check.weight
    ]
    if not weighted:  # nothing but gates
        return float(solved)
    if rubric.combine == "min":
        return min(score for _, score in weighted)
    total = math.fsum(weight for weight, _ in weighted)
    return math.fsum(weight * score for weight, score in weighted) / total
