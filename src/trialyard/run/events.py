"""Event sinks: the run's file, several at once, and the reader of the file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trialyard.core.clock import Clock
from trialyard.core.events import EventSink


class EventFile:
    """Appends one JSON object a line; a line torn by a crash is closed and later skipped."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self._file.write("\n")
        self._clock = clock

    def emit(self, kind: str, **fields: Any) -> None:
        line = {"kind": kind, "time_s": self._clock.wall_s(), **fields}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.close()


class Events:
    """Passes each event to several sinks, in order."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, kind: str, **fields: Any) -> None:
        for sink in self._sinks:
            sink.emit(kind, **fields)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Events of a file in order; an unreadable line (torn by a crash) is skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event
