"""Group-relative advantages: how much better a trajectory was than its siblings.

Invariants: an ungraded member (reward None) has no advantage and leaves mean,
deviation and size of its group; a group whose rewards are equal up to float noise has
no signal and is never scaled up. Pure functions; G is the group.
"""

import math
from collections.abc import Sequence
from typing import Literal

from trialyard.core.errors import LearnerError

Scale = Literal["none", "deviation", "leave_one_out"]

VARIANCE_TOLERANCE = 1e-6
"""Rewards that differ by no more than this are equal. Rewards lie in [0, 1]."""


def has_variance(rewards_G: Sequence[float], tolerance: float = VARIANCE_TOLERANCE) -> bool:
    """Whether rewards differ: by spread, since a deviation computed in floats is never quite 0."""
    return bool(rewards_G) and max(rewards_G) - min(rewards_G) > tolerance


def group_advantages(
    rewards_G: Sequence[float | None],
    *,
    scale: Scale = "none",
    tolerance: float = VARIANCE_TOLERANCE,
) -> list[float | None] | None:
    """Advantages of one group, None where a member is ungraded.

    ``none``: ``A_i = R_i - mean(R)`` (Dr. GRPO, Liu et al., arXiv 2503.20783).
    ``deviation``: ``A_i = (R_i - mean(R)) / std(R)`` with the population deviation
    (GRPO, Shao et al., arXiv 2402.03300).
    ``leave_one_out``: ``A_i = R_i - mean of the others`` (RLOO, Ahmadian et al.,
    arXiv 2402.14740).

    All over the graded members. The whole answer is None when the group has no signal:
    fewer than two graded members, or rewards that are all equal.
    """
    graded = [reward for reward in rewards_G if reward is not None]
    unsound = [reward for reward in graded if not math.isfinite(reward)]
    if unsound:
        raise LearnerError(f"reward {unsound[0]} is not a finite number; fix the grader")
    if len(graded) < 2 or not has_variance(graded, tolerance):
        return None
    mean = math.fsum(graded) / len(graded)
    factor = 1.0
    if scale == "deviation":
        variance = math.fsum((reward - mean) ** 2 for reward in graded) / len(graded)
        factor = 1.0 / math.sqrt(variance)
    elif scale == "leave_one_out":
        factor = len(graded) / (len(graded) - 1)
    return [None if reward is None else (reward - mean) * factor for reward in rewards_G]
