"""What feedback promises: the first failing case, in bounded text, whatever came back."""

from typing import Any

from trialyard.core.feedback import compact_feedback, full_feedback
from trialyard.core.outcome import CaseOutcome, CaseStatus


def outcome(status: CaseStatus, got: Any = None, message: str = "") -> CaseOutcome:
    return CaseOutcome(0, status, ([3, -1],), expected=[2], got=got, message=message)


def test_a_failed_case_shows_what_came_out_and_what_was_wanted() -> None:
    text = compact_feedback([outcome("passed", [2]), outcome("failed", (2,)), outcome("timeout")])
    assert text == "passed 1 of 3; f([3, -1]) got (2,) want [2]"


def test_an_error_is_named_by_its_first_word() -> None:
    error = outcome("error", message="NameError: name 'y' is not defined")
    assert compact_feedback([error]) == "passed 0 of 1; f([3, -1]) error NameError want [2]"
    assert "error Error want" in compact_feedback([outcome("error", message="\x00\n")])


def test_other_statuses_stand_for_themselves() -> None:
    assert "timeout want" in compact_feedback([outcome("timeout")])
    assert "not_run want" in compact_feedback([outcome("not_run")])


def test_all_passed_shows_no_case() -> None:
    assert compact_feedback([outcome("passed", [2])]) == "passed 1 of 1"


def test_hostile_values_stay_short() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for got in ("x" * 10**6, 10**5000, list(range(10**5)), nested):
        assert len(compact_feedback([outcome("failed", got)])) < 300
        assert len(full_feedback([outcome("failed", got)] * 100)) < 2000
    assert len(compact_feedback([outcome("error", message="A" * 10**6)])) < 300


def test_full_feedback_lists_several_cases_and_counts_the_rest() -> None:
    text = full_feedback([outcome("failed", 1)] * 7)
    assert text.count("got 1") == 5
    assert text.endswith("... and 2 more")
