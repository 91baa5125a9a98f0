"""Writing TOML: the plain part that task files need (reading is `tomllib`)."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

_BARE_KEY = re.compile(r"^[A-Za-z0-9_-]+$")


def dump_toml(table: Mapping[str, Any]) -> str:
    """A TOML document. Nones are left out; raises `TypeError` for what TOML cannot hold."""
    lines: list[str] = []
    _table(lines, (), table)
    return "\n".join(lines).strip("\n") + "\n"


def _table(lines: list[str], path: tuple[str, ...], table: Mapping[str, Any]) -> None:
    present = {key: value for key, value in table.items() if value is not None}
    plain = {key: value for key, value in present.items() if not _is_nested(value)}
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in present.items():
        name = ".".join(map(_key, (*path, key)))
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]"]
            _table(lines, (*path, key), value)
        elif _is_nested(value):
            for item in value:
                lines += ["", f"[[{name}]]"]
                _table(lines, (*path, key), item)


def _is_nested(value: Any) -> bool:
    """Whether a value is written as tables of its own."""
    if isinstance(value, Mapping):
        return True
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )


def _key(key: str) -> str:
    return key if _BARE_KEY.match(key) else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Mapping):
        pairs = (f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(item) for item in value if item is not None) + "]"
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as TOML")


def _string(text: str) -> str:
    """A basic string; JSON's escapes are TOML's but for DEL and lone surrogates."""
    quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return quoted.encode("utf-8", "replace").decode()
