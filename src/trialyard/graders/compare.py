"""Comparison of plain values, outside the candidate's process.

Both sides are built of exact built-in types (they were decoded by `core.plain`), so
no comparison here can run anybody's code.
"""

import math
from typing import Any

from trialyard.core import plain
from trialyard.core.cases import Case

_SEQUENCES = (list, tuple)


def matches(case: Case, got: Any, expected: Any) -> bool:
    """Whether `got` is what the case expects, by its compare mode and tolerance."""
    if case.compare == "strict":
        return plain.same(got, expected, tolerance=case.tolerance)
    if case.compare == "truth":
        return bool(got) is bool(expected)
    if case.compare == "multiset":
        return _same_multiset(got, expected, case.tolerance)
    if case.compare == "sequence":
        return plain.same(_as_lists(got), _as_lists(expected), tolerance=case.tolerance)
    return got == expected or (case.tolerance > 0 and _close(got, expected, case.tolerance))


def _as_lists(value: Any) -> Any:
    if isinstance(value, _SEQUENCES):
        return [_as_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    return value


def _same_multiset(got: Any, expected: Any, tolerance: float) -> bool:
    if type(got) is not type(expected) or not isinstance(got, _SEQUENCES):
        return False
    if len(got) != len(expected):
        return False
    left = list(expected)
    for item in got:
        found = next(
            (i for i, other in enumerate(left) if plain.same(item, other, tolerance=tolerance)),
            None,
        )
        if found is None:
            return False
        del left[found]
    return True


def _close(got: Any, expected: Any, tolerance: float) -> bool:
    """Python's ``==``, but floats within tolerance at any depth."""
    if isinstance(got, float) or isinstance(expected, float):
        numbers = isinstance(got, (int, float)) and isinstance(expected, (int, float))
        return numbers and math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(got, _SEQUENCES) and type(got) is type(expected):
        return len(got) == len(expected) and all(
            a == b or _close(a, b, tolerance) for a, b in zip(got, expected, strict=True)
        )
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(
            value == expected[key] or _close(value, expected[key], tolerance)
            for key, value in got.items()
        )
    return bool(got == expected)
