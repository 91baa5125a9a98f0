"""What every benchmark prints: the machine, and targets with what was measured against them."""

import os
import platform
from typing import Any

BARE_BWRAP = [
    *("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
    "/bin/true",
]
"""The raw tool beside a box; started by root it isolates nothing."""


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.release()}"


def at_most(name: str, value: float, target: float) -> dict[str, Any]:
    return _target(name, value, "<=", target, met=value <= target)


def at_least(name: str, value: float, target: float) -> dict[str, Any]:
    return _target(name, value, ">=", target, met=value >= target)


def zero(name: str, value: int) -> dict[str, Any]:
    return _target(name, value, "==", 0, met=value == 0)


def _target(name: str, value: float, op: str, target: float, *, met: bool) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "op": op, "target": target, "met": met}
