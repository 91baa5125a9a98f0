"""The durable table of one owner's boxes: which there are, whose, and until when.

One line of JSON per change, appended with one write, so a reader sees every box from before
its first process until it is gone, also after the owner was killed; a torn last line is
passed over. Lines about boxes that are gone are dropped now and then. Times are of the
machine's monotonic clock, which all its processes share.
"""

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trialyard.core.errors import SandboxUnavailable
from trialyard.core.sandbox import Limits

_SPARE_LINES = 4096
State = Literal["starting", "unused", "leased", "leaked"]


@dataclass(frozen=True, slots=True)
class BoxRecord:
    """One box as its supervisor last wrote it down."""

    id: str
    image: str
    limits: Mapping[str, Any]
    workdir: str
    user: str
    uid: int
    started_s: float
    state: State = "starting"
    pid: int | None = None
    """The host's pid of its PID 1."""
    owner: str | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The supervisor, and what it had."""

    pid: int | None = None
    boxes: list[BoxRecord] = field(default_factory=list)


class BoxTable:
    """The owner's side. Made once for each owner."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kinds: dict[tuple[str, Limits, str, str], int] = {}
        self._lines: dict[str, list[bytes]] = {}
        """Box id -> what stands in the file about it."""
        self._num_lines = 0
        self._is_torn = False
        self._fd = -1
        self._open(path)
        self._write({"supervisor": os.getpid()})

    def _open(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        self.close()
        self._fd = fd

    def starting(
        self,
        id: str,
        kind: tuple[str, Limits, str, str],
        uid: int,
        now_s: float,
    ) -> None:
        """A box will be started; `kind` is (image, limits, workdir, user).

        Raises `SandboxUnavailable` when that cannot be written down.
        """
        try:
            if self._num_lines > _SPARE_LINES + 4 * len(self._lines):
                self._compact()
            number = self._kinds.get(kind)
            if number is None:
                number = len(self._kinds)
                self._write(_kind_line(number, kind))
                self._kinds[kind] = number
            self._lines[id] = []
            self._note(id, {"box": id, "kind": number, "uid": uid, "at": round(now_s, 3)})
        except OSError as error:
            self._lines.pop(id, None)
            raise SandboxUnavailable(
                f"cannot note a box in {self._path}: {error.strerror}"
            ) from error

    def ready(self, id: str, pid: int) -> None:
        self._try(id, {"box": id, "state": "unused", "pid": pid})

    def leased(self, id: str, owner: str, deadline_s: float) -> None:
        change = {"state": "leased", "owner": owner, "until": round(deadline_s, 3)}
        self._try(id, {"box": id, **change})

    def leaked(self, id: str) -> None:
        """Something of the box would not go: it stays in the table."""
        self._try(id, {"box": id, "state": "leaked"})

    def ended(self, id: str) -> None:
        if self._lines.pop(id, None) is not None:
            with contextlib.suppress(OSError):
                self._write({"box": id, "state": "ended"})

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _try(self, id: str, change: dict[str, Any]) -> None:
        """On a full disk a box goes on; its line is only less exact."""
        if id in self._lines:
            with contextlib.suppress(OSError):
                self._note(id, change)

    def _note(self, id: str, change: dict[str, Any]) -> None:
        self._lines[id].append(self._write(change))

    def _write(self, change: dict[str, Any]) -> bytes:
        line = _encode(change)
        written = os.write(self._fd, b"\n" + line if self._is_torn else line)
        self._is_torn = written < len(line)
        if self._is_torn:  # the disk filled up in the middle
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._num_lines += 1
        return line

    def _compact(self) -> None:
        """Write the file anew with what still holds."""
        lines = [line for about in self._lines.values() for line in about]
        head = [_encode({"supervisor": os.getpid()})]
        head += [_encode(_kind_line(number, kind)) for kind, number in self._kinds.items()]
        path, partial = self._path, self._path.with_suffix(".new")
        self._open(partial)
        os.write(self._fd, b"".join(head + lines))
        partial.replace(path)
        self._num_lines = len(head) + len(lines)


def _kind_line(number: int, kind: tuple[str, Limits, str, str]) -> dict[str, Any]:
    image, limits, workdir, user = kind
    values = {"image": image, "limits": limits.model_dump(mode="json"), "workdir": workdir}
    return {"kind": number, **values, "user": user}


def _encode(change: dict[str, Any]) -> bytes:
    return json.dumps(change, separators=(",", ":")).encode() + b"\n"


def read_table(path: Path) -> OwnerRecord:
    """What the file says; nothing when it is not there or holds no lines of ours."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return OwnerRecord()
    pid = None
    kinds: dict[int, dict[str, Any]] = {}
    boxes: dict[str, BoxRecord] = {}
    for line in lines:
        try:
            change = json.loads(line)
            if "supervisor" in change:
                pid = int(change["supervisor"])
            elif "image" in change:
                kinds[change.pop("kind")] = change
            else:
                _apply(change, kinds, boxes)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # the last line when the owner died while it wrote
    return OwnerRecord(pid, list(boxes.values()))


def _apply(
    change: dict[str, Any], kinds: dict[int, dict[str, Any]], boxes: dict[str, BoxRecord]
) -> None:
    id = change["box"]
    if "kind" in change:
        kind = kinds[change["kind"]]
        boxes[id] = BoxRecord(id=id, uid=change["uid"], started_s=change["at"], **kind)
        return
    state = change["state"]
    if state == "ended":
        del boxes[id]
    elif state == "unused":
        boxes[id] = replace(boxes[id], state=state, pid=change["pid"])
    elif state == "leased":
        boxes[id] = replace(
            boxes[id], state=state, owner=change["owner"], deadline_s=change["until"]
        )
    else:
        boxes[id] = replace(boxes[id], state=state)
