"""Cases: the inputs of a values check, and how its results are compared.

A cases file is a JSON list of objects; every value in it is in the encoding of
`trialyard.core.plain`:

- ``args`` (a JSON list of encoded values) and ``kwargs`` (name -> encoded value): the call;
- or ``expression``: Python source evaluated in the candidate's module, after ``setup``
  ran there, for inputs that only the candidate's own types can express;
- ``expected``, or ``expected_source``: source whose value a clean box computes;
- ``compare``: a mode, or ``{"mode": ..., "tolerance": ...}``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trialyard.core import plain
from trialyard.core.errors import TaskError

CompareMode = Literal["strict", "equal", "sequence", "multiset", "truth"]
"""``strict``: same types and values. ``equal``: Python's ``==`` on the plain values.
``sequence``: strict, but a tuple equals a list. ``multiset``: a list in any order.
``truth``: the truth value counts."""

MODES: tuple[str, ...] = get_args(CompareMode)
_KEYS = frozenset(
    {"args", "kwargs", "expression", "setup", "expected", "expected_source", "compare"}
)


@dataclass(frozen=True, slots=True)
class Case:
    """One call and the value that it must give."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    expected: Any = None
    compare: CompareMode = "strict"
    tolerance: float = 0.0
    """Relative and absolute at once, for floats at any depth."""
    expression: str = ""
    setup: str = ""
    expected_source: str = ""


def dump_cases(cases: Sequence[Case]) -> bytes:
    """The cases file: one case a line, equal cases give equal bytes."""
    lines = ",\n".join(json.dumps(_to_json(case), separators=(", ", ": ")) for case in cases)
    return f"[\n{lines}\n]\n".encode()


def load_cases(data: bytes, *, source: str = "cases") -> tuple[Case, ...]:
    """Cases of a file's content. Raises `TaskError` that names `source` and the case."""
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{source}: not JSON: {error}; write a list of cases") from error
    if not isinstance(rows, list) or not rows:
        raise TaskError(f"{source}: must be a non-empty JSON list of cases")
    return tuple(_from_json(row, f"{source}, case {index}") for index, row in enumerate(rows))


def _to_json(case: Case) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if case.expression:
        out["expression"] = case.expression
    else:
        out["args"] = [plain.encode(value) for value in case.args]
        if case.kwargs:
            out["kwargs"] = {name: plain.encode(value) for name, value in case.kwargs.items()}
    if case.setup:
        out["setup"] = case.setup
    if case.expected_source:
        out["expected_source"] = case.expected_source
    else:
        out["expected"] = plain.encode(case.expected)
    if case.tolerance:
        out["compare"] = {"mode": case.compare, "tolerance": case.tolerance}
    elif case.compare != "strict":
        out["compare"] = case.compare
    return out


def _from_json(row: Any, where: str) -> Case:
    if not isinstance(row, dict):
        raise TaskError(f"{where}: must be an object with args and expected")
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise TaskError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(_KEYS))}")
    if ("expected" in row) == ("expected_source" in row):
        raise TaskError(f"{where}: give exactly one of expected and expected_source")
    if ("args" in row) == ("expression" in row):
        raise TaskError(f"{where}: give exactly one of args and expression")
    mode, tolerance = _comparison(row.get("compare", "strict"), where)
    args, kwargs = row.get("args", []), row.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise TaskError(f"{where}: args must be a list and kwargs an object")
    try:
        return Case(
            args=tuple(plain.decode(value) for value in args),
            kwargs={name: plain.decode(value) for name, value in kwargs.items()},
            expected=plain.decode(row.get("expected")),
            compare=mode,
            tolerance=tolerance,
            expression=_text(row, "expression", where),
            setup=_text(row, "setup", where),
            expected_source=_text(row, "expected_source", where),
        )
    except plain.PlainError as error:
        raise TaskError(f"{where}: {error}; see trialyard.core.plain") from error


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key, "")
    if not isinstance(value, str):
        raise TaskError(f"{where}: {key} must be a string")
    return value


def _comparison(value: Any, where: str) -> tuple[CompareMode, float]:
    mode, tolerance = value, 0.0
    if isinstance(value, dict) and set(value) <= {"mode", "tolerance"}:
        mode, tolerance = value.get("mode", "strict"), value.get("tolerance", 0.0)
    if mode not in MODES:
        raise TaskError(f"{where}: compare must be one of {', '.join(MODES)}")
    if type(tolerance) not in (int, float) or not 0 <= tolerance < 1e300:
        raise TaskError(f"{where}: tolerance must be a finite number of at least 0")
    return mode, float(tolerance)
