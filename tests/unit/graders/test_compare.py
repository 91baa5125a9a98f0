"""Comparison outside the candidate: what is equal, by mode."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.core.cases import Case, CompareMode
from trialyard.graders.compare import matches

TABLE: list[tuple[CompareMode, object, object, bool]] = [
    ("strict", 1, 1, True),
    ("strict", 1, 1.0, False),
    ("strict", True, 1, False),
    ("strict", [1], (1,), False),
    ("strict", {1: [2]}, {1: [2]}, True),
    ("strict", {1: 2}, {True: 2}, False),
    ("strict", math.nan, math.nan, True),
    ("equal", 1, 1.0, True),
    ("equal", True, 1, True),
    ("equal", [1], (1,), False),
    ("equal", {1, 2}, frozenset({2, 1}), True),
    ("equal", "1", 1, False),
    ("equal", math.nan, math.nan, False),
    ("sequence", [1, (2, [3])], (1, [2, (3,)]), True),
    ("sequence", [1], (1.0,), False),
    ("sequence", {"a": [1]}, {"a": (1,)}, True),
    ("multiset", [3, 1, 1], [1, 3, 1], True),
    ("multiset", [3, 1], [1, 3, 1], False),
    ("multiset", [1, 1, 3], [1, 3, 3], False),
    ("multiset", (1, 2), [2, 1], False),
    ("multiset", 5, 5, False),
    ("truth", [0], True, True),
    ("truth", "", False, True),
    ("truth", 0, True, False),
]


@pytest.mark.parametrize(("mode", "got", "expected", "equal"), TABLE)
def test_modes(mode: CompareMode, got: object, expected: object, equal: bool) -> None:
    assert matches(Case(compare=mode), got, expected) is equal


@pytest.mark.parametrize("mode", ["strict", "equal", "sequence", "multiset"])
def test_tolerance_reaches_floats_inside_and_nothing_else(mode: CompareMode) -> None:
    case = Case(compare=mode, tolerance=1e-6)
    assert matches(case, [1.0 + 1e-9], [1.0])
    assert not matches(case, [1.1], [1.0])
    assert not matches(case, ["a"], ["b"])
    assert not matches(case, [math.nan], [1.0])
    assert not matches(case, [math.inf], [1e308])
    assert not matches(case, [10**15 + 1], [10**15])


@given(st.recursive(st.integers() | st.text() | st.booleans(), st.lists, max_leaves=10))
def test_every_value_equals_itself(value: object) -> None:
    modes: tuple[CompareMode, ...] = ("strict", "equal", "sequence", "truth")
    assert all(matches(Case(compare=mode), value, value) for mode in modes)
