"""One thing that the doctor tried."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from trialyard.core.errors import TrialyardError


@dataclass(frozen=True, slots=True)
class Finding:
    """`cure` says what to do when it is not ok; only `required` ones make boxes unsafe."""

    name: str
    ok: bool
    detail: str
    cure: str = ""
    required: bool = True


def attempt(name: str, action: Callable[[], str], *, required: bool = True) -> Finding:
    """Ok with what the action returns, or not with what it raises."""
    try:
        return Finding(name, True, action(), required=required)
    except (TrialyardError, OSError, subprocess.SubprocessError) as error:
        return Finding(name, False, "not usable", cure=str(error), required=required)
