"""Outcomes: what one call of a candidate function gave, compared outside its process."""

from dataclasses import dataclass
from typing import Any, Literal

CaseStatus = Literal["passed", "failed", "error", "timeout", "not_run"]


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """Outcome of one case of a values check. `got` is set only where the call returned."""

    case: int
    status: CaseStatus
    args: tuple[Any, ...]
    expected: Any
    got: Any = None
    message: str = ""
    duration_s: float = 0.0
