"""Group-relative advantages, and the two reported faults around them."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.core.errors import LearnerError
from trialyard.learning.advantage import Scale, group_advantages, has_variance

CASE_37 = Path("tests/cases/37_infra_error_is_not_reward_zero")
CASE_38 = Path("tests/cases/38_zero_variance_hidden_by_rounding")

rewards = st.lists(st.none() | st.floats(0, 1), max_size=12)


def exact(text: str) -> float:
    return float(Fraction(text))


def test_case_37_ungraded_members_leave_mean_and_size() -> None:
    expected = json.loads((CASE_37 / "expected.json").read_text())
    for group in json.loads((CASE_37 / "groups.json").read_text()):
        advantages = group_advantages([sample["reward"] for sample in group["samples"]])
        wanted = expected[group["group"]]
        if isinstance(wanted, str):
            assert advantages is None
            continue
        assert advantages is not None
        for sample, advantage in zip(group["samples"], advantages, strict=True):
            value = wanted[sample["id"]]
            assert advantage == (None if value is None else pytest.approx(exact(value)))


def test_case_38_rounding_is_not_variance() -> None:
    expected = json.loads((CASE_38 / "expected.json").read_text())
    for group in json.loads((CASE_38 / "groups.json").read_text()):
        values = [float(r) for r in np.array(group["rewards"], dtype=group["dtype"])]
        advantages = group_advantages(values, scale="deviation")
        if group["group"] in expected["zero_variance"]:
            assert advantages is None
        else:
            assert advantages == pytest.approx(expected["kept"][group["group"]], abs=1e-3)


def test_rewards_that_differ_by_rounding_of_a_mean_are_equal() -> None:
    assert not has_variance([0.1 + 0.2, 0.3, 0.3])
    assert not has_variance([])
    assert has_variance([0.3, 0.301])


@given(rewards, st.sampled_from(["none", "deviation", "leave_one_out"]))
def test_graded_advantages_sum_to_zero_and_keep_order(
    group: list[float | None], scale: Scale
) -> None:
    advantages = group_advantages(group, scale=scale)
    graded = [reward for reward in group if reward is not None]
    if advantages is None:
        assert len(graded) < 2 or max(graded) - min(graded) <= 1e-6
        return
    pairs = [(r, a) for r, a in zip(group, advantages, strict=True) if r is not None]
    values = [a for _, a in pairs if a is not None]
    assert len(values) == len(pairs)
    assert all((a is None) == (r is None) for r, a in zip(group, advantages, strict=True))
    assert math.fsum(values) == pytest.approx(0, abs=1e-9)
    assert all(math.isfinite(a) for a in values)
    ordered = [a for _, a in sorted(pairs, key=lambda pair: pair[0]) if a is not None]
    assert ordered == sorted(values)
    if scale == "deviation":
        assert np.std(values) == pytest.approx(1.0, rel=1e-6)


@given(rewards, st.integers(0, 12))
def test_an_ungraded_member_changes_nothing_for_the_others(
    group: list[float | None], place: int
) -> None:
    place = min(place, len(group))
    with_lost = group_advantages([*group[:place], None, *group[place:]])
    without = group_advantages(group)
    if without is None:
        assert with_lost is None
    else:
        assert with_lost == [*without[:place], None, *without[place:]]


def test_leave_one_out_compares_with_the_others() -> None:
    group = [1.0, 0.0, 0.25, None]
    advantages = group_advantages(group, scale="leave_one_out")
    assert advantages == pytest.approx([1 - 0.125, 0 - 0.625, 0.25 - 0.5, None])


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_an_unsound_reward_is_refused(reward: float) -> None:
    with pytest.raises(LearnerError, match="finite"):
        group_advantages([0.0, reward, 1.0])
