"""Plain values: what crosses from an untrusted process is data, whole or refused."""

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.core import plain

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=20)
)
keys = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
    ),
    max_leaves=20,
)


@given(values)
def test_every_plain_value_survives_the_crossing(value: Any) -> None:
    assert plain.same(plain.loads(plain.dumps(value)), value)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists, max_leaves=10))
def test_any_json_decodes_or_is_refused(document: Any) -> None:
    with contextlib.suppress(plain.PlainError):
        plain.loads(json.dumps(document))


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b'["x", []]',
        b'["i", "zz"]',
        b'["i", 5]',
        b'["d", [[1]]]',
        b'["s", [["l", []]]]',
        b'["l", 3]',
        b'["b", "*"]',
        b"[" * 100_000,
        json.dumps(["i", "1" * 10_000]).encode(),
    ],
)
def test_malformed_documents_are_refused(document: bytes) -> None:
    with pytest.raises(plain.PlainError):
        plain.loads(document)


def test_depth_and_foreign_types_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    for value in (deep, object(), type("Liar", (int,), {})(3)):
        with pytest.raises(plain.PlainError):
            plain.encode(value)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        ([1], (1,), False),
        ({1: "a"}, {True: "a"}, False),
        ({1}, {True}, False),
        (math.nan, math.nan, True),
        (0.1 + 0.2, 0.3, False),
        ({"a": [1, (2,)]}, {"a": [1, (2,)]}, True),
    ],
)
def test_sameness_is_by_strict_type(left: Any, right: Any, equal: bool) -> None:
    assert plain.same(left, right) is equal


def test_tolerance_reaches_floats_at_any_depth() -> None:
    assert plain.same({"x": [0.1 + 0.2]}, {"x": [0.3]}, tolerance=1e-9)
    assert not plain.same([1.0], [1.1], tolerance=1e-3)
