"""The runner's encoder says exactly what `core.plain` says, and nothing else gets through."""

import importlib.util
import json
from collections import Counter, OrderedDict, defaultdict, namedtuple
from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialyard.core import plain
from trialyard.graders.layers import RUNNER_SOURCE


def load_runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("runner", RUNNER_SOURCE / "values_runner.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUNNER = load_runner()


def encoded(value: Any, max_chars: int = 100_000) -> Any:
    encoder = RUNNER.Encoder(max_chars)
    encoder.value(value)
    return json.loads("".join(encoder.parts))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.binary()
)
KEYS = st.integers() | st.text() | st.tuples(st.integers(), st.booleans())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.sets(KEYS)
        | st.frozensets(KEYS)
        | st.dictionaries(KEYS, inner)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_plain_values_are_encoded_as_core_does(value: Any) -> None:
    assert encoded(value) == plain.encode(value)
    assert plain.same(plain.decode(encoded(value)), value)


class Liar(float):
    def __eq__(self, other: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "42.0"

    __hash__ = float.__hash__


class ShiftyList(list[int]):
    def __iter__(self) -> Any:
        return iter([9, 9])

    def __len__(self) -> int:
        return 2


class ShiftyDict(dict[str, int]):
    def items(self) -> Any:
        return [("x", 9)]


class ShiftyText(str):
    def __str__(self) -> str:
        return "other"


Pair = namedtuple("Pair", "x y")
Colour = IntEnum("Colour", ["RED"])
BELOW: list[tuple[Any, Any]] = [
    (Liar(0.5), 0.5),
    (ShiftyList([1]), [1]),
    (ShiftyDict(a=1), {"a": 1}),
    (ShiftyText("a"), "a"),
    (Pair(1, 2), (1, 2)),
    (Colour.RED, 1),
    (Counter("aab"), {"a": 2, "b": 1}),
    (OrderedDict(a=1), {"a": 1}),
    (defaultdict(int, a=1), {"a": 1}),
]


@pytest.mark.parametrize(("value", "below"), BELOW)
def test_a_subclass_is_the_plain_value_below_it(value: Any, below: Any) -> None:
    assert encoded(value) == plain.encode(below)


@pytest.mark.parametrize("value", [object(), range(3), iter([]), {}.keys(), len, bytearray(), int])
def test_anything_else_is_not_plain(value: Any) -> None:
    with pytest.raises(RUNNER.NotPlain):
        encoded(value)


def test_size_depth_and_length_of_integers_are_bounded() -> None:
    deep: Any = 0
    for _ in range(100):
        deep = [deep]
    for value in (deep, 1 << 20_000, ["x" * 60_000, "x" * 60_000]):
        with pytest.raises(RUNNER.NotPlain):
            encoded(value)
