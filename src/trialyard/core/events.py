"""Events: append-only facts about a run, one JSON object a line."""

from typing import Any, Protocol


class EventSink(Protocol):
    """Where a run says what happened; readers are the terminal, reports and pages."""

    def emit(self, kind: str, **fields: Any) -> None:
        """Record one fact. `kind` is a word such as ``step``, ``evaluation``, ``fault``."""
