"""Plain values: what may cross from an untrusted process, as bounded JSON.

Encoding (every value a JSON value):

- None, bool, str, and ints within 53 bits stand for themselves;
- ``["i", "123..."]`` a larger int, ``["f", repr]`` a float (also nan, inf),
  ``["c", re, im]`` a complex, ``["b", base64]`` bytes;
- ``["l", [...]]`` list, ``["t", [...]]`` tuple, ``["s", [...]]`` set,
  ``["z", [...]]`` frozenset, ``["d", [[k, v], ...]]`` dict.

Decoding never runs anything and is bounded in depth, in number of nodes and in the
length of integers. `same` compares by strict type: 1, 1.0 and True all differ.
"""

import base64
import json
import math
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 1_000_000
MAX_INT_DIGITS = 4300
_SAFE_INT = 1 << 53


class PlainError(ValueError):
    """The value is not plain, or not within the bounds."""


def encode(value: Any) -> Any:
    """JSON form of a plain value. Raises `PlainError` for any other type."""
    return _encode(value, MAX_DEPTH)


def _encode(value: Any, depth: int) -> Any:
    if depth == 0:
        raise PlainError(f"nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_SAFE_INT < value < _SAFE_INT else ["i", hex(value)]
    if kind is float:
        return ["f", repr(value)]
    if kind is complex:
        return ["c", repr(value.real), repr(value.imag)]
    if kind is bytes:
        return ["b", base64.b64encode(value).decode()]
    tags: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "z"}
    if kind in tags:
        return [tags[kind], [_encode(item, depth - 1) for item in value]]
    if kind is dict:
        pairs = [[_encode(k, depth - 1), _encode(v, depth - 1)] for k, v in value.items()]
        return ["d", pairs]
    raise PlainError(f"a value of type {kind.__name__} is not plain data")


def decode(data: Any) -> Any:
    """Plain value of its JSON form. Raises `PlainError` on anything else."""
    return _Decoder().decode(data, MAX_DEPTH)


def loads(text: str | bytes) -> Any:
    """Decode a JSON document. Raises `PlainError`."""
    try:
        return decode(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise PlainError(f"not a plain value: {error}") from error


def dumps(value: Any) -> str:
    """Encode as a JSON document. Raises `PlainError`."""
    return json.dumps(encode(value), separators=(",", ":"))


class _Decoder:
    def __init__(self) -> None:
        self.nodes = 0

    def decode(self, data: Any, depth: int) -> Any:
        self.nodes += 1
        if depth == 0 or self.nodes > MAX_NODES:
            raise PlainError("value too deep or too large")
        if data is None or type(data) in (bool, str, int):
            return data
        if type(data) is not list or not data or type(data[0]) is not str:
            raise PlainError("malformed value")
        try:
            return self._tagged(data[0], data[1:], depth - 1)
        except PlainError:
            raise
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise PlainError(f"malformed {data[0]!r} value: {error}") from error

    def _tagged(self, tag: str, rest: list[Any], depth: int) -> Any:
        if tag == "c":
            return complex(float(rest[0]), float(rest[1]))
        (body,) = rest
        if tag in ("i", "f", "b") and type(body) is not str:
            raise PlainError("malformed scalar")
        if tag == "i":
            if len(body) > MAX_INT_DIGITS:
                raise PlainError("integer too long")
            return int(body, 16)
        if tag == "f":
            return float(body)
        if tag == "b":
            return base64.b64decode(body, validate=True)
        if type(body) is not list:
            raise PlainError("malformed container")
        if tag == "d":
            return {self.decode(k, depth): self.decode(v, depth) for k, v in body}
        containers = {"l": list, "t": tuple, "s": set, "z": frozenset}
        if tag not in containers:
            raise PlainError(f"unknown tag {tag!r}")
        return containers[tag](self.decode(item, depth) for item in body)


def same(left: Any, right: Any, *, tolerance: float = 0.0) -> bool:
    """Strict equality of plain values: types must match; floats within `tolerance`.

    `tolerance` is relative and absolute at once (``math.isclose``); NaN equals NaN.
    """
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right or math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(left, complex):
        return same(left.real, right.real, tolerance=tolerance) and same(
            left.imag, right.imag, tolerance=tolerance
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(
            same(a, b, tolerance=tolerance) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, dict):
        if {(type(k), k) for k in left} != {(type(k), k) for k in right}:
            return False
        return all(same(value, right[key], tolerance=tolerance) for key, value in left.items())
    if isinstance(left, (set, frozenset)):
        return {(type(k), k) for k in left} == {(type(k), k) for k in right}
    return bool(left == right)
