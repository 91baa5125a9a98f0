"""The rubric's shapes: bounded, monotone, and refusing what is no number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.core.errors import GraderError
from trialyard.core.grader import CheckResult
from trialyard.core.task import Rubric, ScriptCheck
from trialyard.graders.rubric import all_required_passed, reward_of


def results(*scores: float | None) -> list[CheckResult]:
    return [
        CheckResult(name=f"c{i}", kind="script", weight=1, score=score, passed=score == 1)
        for i, score in enumerate(scores)
    ]


def checks(*weights: float, required: tuple[int, ...] = ()) -> list[ScriptCheck]:
    return [
        ScriptCheck(name=f"c{i}", weight=weight, required=i in required)
        for i, weight in enumerate(weights)
    ]


def test_weighted_mean_minimum_and_all() -> None:
    some, weights = results(1.0, 0.5), checks(1, 3)
    assert reward_of(Rubric(), weights, some) == pytest.approx(0.625)
    assert reward_of(Rubric(combine="min"), weights, some) == 0.5
    assert reward_of(Rubric(combine="all"), weights, some) == 0.0
    assert reward_of(Rubric(combine="all"), weights, results(1, 1)) == 1.0


def test_a_failed_required_check_is_a_zero_in_every_mode() -> None:
    for combine in ("weighted", "min", "all"):
        rubric = Rubric.model_validate({"combine": combine})
        assert reward_of(rubric, checks(1, 1, required=(1,)), results(1, 0.9)) == 0.0


def test_a_check_of_weight_0_is_a_gate_only() -> None:
    assert reward_of(Rubric(), checks(1, 0), results(1, 0)) == 1.0
    assert reward_of(Rubric(combine="min"), checks(1, 0), results(0.5, 0)) == 0.5
    assert reward_of(Rubric(), checks(0, 0), results(1, 1)) == 1.0
    assert reward_of(Rubric(), checks(0, 0), results(1, 0.5)) == 0.0


def test_below_the_threshold_nothing_is_paid() -> None:
    rubric = Rubric(threshold=0.5)
    assert reward_of(rubric, checks(1), results(0.49)) == 0.0
    assert reward_of(rubric, checks(1), results(0.5)) == 0.5


def test_the_bonus_is_paid_only_when_everything_passed() -> None:
    rubric = Rubric(solved_bonus=0.4)
    assert reward_of(rubric, checks(1, 1), results(1, 0.5)) == pytest.approx(0.45)
    assert reward_of(rubric, checks(1, 1), results(1, 1)) == 1.0


def test_no_reward_comes_of_a_missing_or_unsound_score() -> None:
    with pytest.raises(GraderError, match="c1"):
        reward_of(Rubric(), checks(1, 1), results(1, None))
    for bad in (math.nan, math.inf, -0.1, 1.1):
        broken = results(1.0)[0].model_copy(update={"score": bad})
        with pytest.raises(GraderError, match="c0"):
            reward_of(Rubric(), checks(1), [broken])


def test_passed_needs_the_required_checks_or_all_where_none_is_required() -> None:
    assert all_required_passed(checks(1, 1, required=(0,)), results(1, 0))
    assert not all_required_passed(checks(1, 1), results(1, 0))
    assert not all_required_passed([], [])


@given(
    scores=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    bonus=st.floats(0, 0.99),
    weights=st.lists(st.floats(0, 1e6), min_size=5, max_size=5),
)
def test_rewards_stay_in_the_unit_interval(
    scores: list[float], bonus: float, weights: list[float]
) -> None:
    for combine in ("weighted", "min", "all"):
        rubric = Rubric.model_validate({"combine": combine, "solved_bonus": bonus})
        reward = reward_of(rubric, checks(*weights[: len(scores)]), results(*scores))
        assert 0.0 <= reward <= 1.0
