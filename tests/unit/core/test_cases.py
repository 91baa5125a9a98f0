"""The cases file: what is written comes back; what is wrong is named with its case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.core.cases import Case, dump_cases, load_cases
from trialyard.core.errors import TaskError

CASES = [
    Case((1, "x", [2.5]), {"k": (1,)}, {"a": {1}}),
    Case(expected=None, compare="equal"),
    Case((1,), expected=1.0, compare="sequence", tolerance=1e-6),
    Case(expression="f(N(1))", setup="n = 1", expected=3, compare="truth"),
    Case((1,), expected_source="1 + 1"),
]


def test_cases_come_back_as_they_were_written() -> None:
    assert load_cases(dump_cases(CASES)) == tuple(CASES)
    assert dump_cases(list(load_cases(dump_cases(CASES)))) == dump_cases(CASES)


@given(st.lists(st.integers() | st.text() | st.booleans() | st.none(), min_size=1))
def test_any_plain_argument_survives(values: list[object]) -> None:
    case = Case(tuple(values), expected=values)
    assert load_cases(dump_cases([case])) == (case,)


BROKEN = [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[]", "non-empty"),
    ("{}", "non-empty"),
    ('[{"args": [], "expected": 1}, 5]', "case 1"),
    ('[{"args": [], "expected": 1, "argz": 2}]', "argz"),
    ('[{"args": []}]', "expected"),
    ('[{"args": [], "expected": 1, "expected_source": "1"}]', "exactly one of expected"),
    ('[{"expected": 1}]', "exactly one of args"),
    ('[{"args": {}, "expected": 1}]', "args must be a list"),
    ('[{"args": [["q", []]], "expected": 1}]', "unknown tag"),
    ('[{"args": [], "expected": 1, "compare": "fuzzy"}]', "compare must be one of"),
    ('[{"args": [], "expected": 1, "compare": {"tolerance": NaN}}]', "tolerance"),
    ('[{"args": [], "expected": 1, "compare": {"tolerance": true}}]', "tolerance"),
    ('[{"expression": 5, "expected": 1}]', "expression must be a string"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_broken_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        load_cases(text.encode(), source="hidden.json")
    assert "hidden.json" in str(caught.value)
