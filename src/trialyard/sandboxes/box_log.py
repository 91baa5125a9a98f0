"""The log of a run's boxes: every command and file operation, one JSON object per line.

Lines are appended with one write each, so a killed process loses none that it told of and
leaves at most one torn line, which readers pass over. The log is bounded: it is a row of
segments of which the oldest go. A log that cannot be written never disturbs the run; what
was dropped is counted. Environment values and file contents are never in it.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trialyard.core.sandbox import ExecResult
from trialyard.sandboxes.box_events import (
    BoxEnded,
    BoxEvent,
    BoxLeased,
    BoxStarted,
    CommandEnded,
    FileOperation,
    NetworkTried,
    Refused,
)

MAX_BYTES = 256 << 20
_SEGMENTS = 8
_MAX_WORD = 2048
_MAX_WORDS = 64
_NAMES: dict[type, str] = {
    Refused: "refused",
    BoxStarted: "started",
    BoxLeased: "leased",
    CommandEnded: "command",
    FileOperation: "file",
    NetworkTried: "network",
    BoxEnded: "ended",
}


class BoxLog:
    """Writes below `directory`, which is made with the first line; an `Observer` of a pool."""

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int = MAX_BYTES,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._segment_bytes = max(1, max_bytes // _SEGMENTS)
        self._wall_s = wall_s
        self._fd = -1
        self._written_bytes = 0
        self.dropped = 0
        """Events that could not be written."""

    def on_event(self, event: BoxEvent) -> None:
        try:
            if self._fd < 0 or self._written_bytes >= self._segment_bytes:
                self._next_segment()
            line = json.dumps(self._describe(event), separators=(",", ":")).encode() + b"\n"
            written = os.write(self._fd, line)
            self._written_bytes += written
            if written < len(line):  # the disk is full: the rest of the line is lost
                self.close()
                self.dropped += 1
        except OSError:
            self.dropped += 1

    def _next_segment(self) -> None:
        self.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        segments = _segments(self._directory)
        number = int(segments[-1].stem) + 1 if segments else 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._directory / f"{number:06}.jsonl", flags, 0o600)
        self._written_bytes = 0
        for old in segments[: max(0, len(segments) + 1 - _SEGMENTS)]:
            old.unlink(missing_ok=True)

    def _describe(self, event: BoxEvent) -> dict[str, Any]:
        now_s = round(self._wall_s(), 3)
        about: dict[str, Any] = {"at_s": now_s, "event": _NAMES[type(event)]}
        if isinstance(event, CommandEnded):
            return about | _describe_command(event, now_s)
        if isinstance(event, NetworkTried):
            return about | {"box": event.box, "owner": event.owner} | event.attempt.to_json()
        if isinstance(event, BoxLeased):
            return about | _fields_of(event) | {"limits": event.limits.model_dump(mode="json")}
        return about | _fields_of(event)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _fields_of(event: BoxEvent) -> dict[str, Any]:
    """Fields by name; times to the millisecond."""
    values = {name: getattr(event, name) for name in event.__slots__}
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}


def _describe_command(event: CommandEnded, now_s: float) -> dict[str, Any]:
    words = [word[:_MAX_WORD] for word in event.argv[:_MAX_WORDS]]
    about: dict[str, Any] = {
        "box": event.box,
        "owner": event.owner,
        "via": event.via,
        "argv": words,
        "env": sorted(event.env)[:_MAX_WORDS],
        "cwd": event.cwd,
        "stdin_bytes": event.stdin_bytes,
        "started_s": round(now_s - event.duration_s, 3),
    }
    if words != list(event.argv):
        about["argv_cut"] = True
    if event.result is None:
        return about | {"status": "error", "error": event.error[:_MAX_WORD]}
    return about | _describe_result(event.result)


def _describe_result(result: ExecResult) -> dict[str, Any]:
    return {
        "status": result.status.value,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
        "limits_hit": sorted(result.limits_hit),
        "usage": asdict(result.usage),
    }


def _segments(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.jsonl") if path.stem.isdigit())


def read_box_log(directory: Path, box: str | None = None) -> Iterator[dict[str, Any]]:
    """Events in the order of writing; of one box or of all. Torn lines are passed over."""
    for segment in _segments(directory):
        with segment.open("rb") as file:
            for line in file:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict) and (box is None or event.get("box") == box):
                    yield event
