"""What the grader's box holds below the workdir: the task's files, then the submission's.

Protected paths keep the task's content and are reported when the submission touches
them. Paths that leave the workdir (other than declared artifacts) never arrive.
"""

import fnmatch
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from trialyard.core.grader import Submission, TamperFinding
from trialyard.core.sandbox import Sandbox
from trialyard.core.task import Task

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Workspace:
    """Files to write (absolute path -> content), paths to remove, and what was refused."""

    files: Mapping[str, bytes]
    removed: tuple[str, ...]
    findings: tuple[TamperFinding, ...]
    refused: str = ""
    """Why the submission cannot be laid out at all; empty when it can."""


def lay_out(task: Task, submission: Submission) -> Workspace:
    """Merge the task's environment with the submission's changes."""
    workdir = task.spec.workdir
    files = {posixpath.join(workdir, path): data for path, data in task.environment.items()}
    original = dict(files)
    removed: list[str] = []
    findings: list[TamperFinding] = []
    for path, data in sorted(submission.files.items()):
        absolute = posixpath.normpath(posixpath.join(workdir, path))
        if not _allowed(task, absolute):
            findings.append(TamperFinding(kind="outside-path", path=path))
        elif _protected(task, absolute):
            if original.get(absolute) != data:
                findings.append(TamperFinding(kind="protected-path", path=path))
        elif data is None:
            files.pop(absolute, None)
            removed.append(absolute)
        else:
            files[absolute] = data
    refused = _refusal(files, task.spec.limits.disk_bytes)
    return Workspace(files, tuple(removed), tuple(findings), refused)


async def fill(sandbox: Sandbox, workspace: Workspace) -> None:
    """Bring a fresh box into the workspace's state."""
    for path in workspace.removed:
        await sandbox.remove(path)
    below = sandbox.workdir.rstrip("/") + "/"
    inside = {p[len(below) :]: data for p, data in workspace.files.items() if p.startswith(below)}
    if inside:
        await sandbox.upload(inside, directory=sandbox.workdir)
    for path, data in workspace.files.items():
        if not path.startswith(below):
            await sandbox.write(path, data)


def _allowed(task: Task, absolute: str) -> bool:
    roots = (task.spec.workdir, *task.spec.artifacts)
    return "\0" not in absolute and any(_below(absolute, root) for root in roots)


def _below(path: str, root: str) -> bool:
    root = posixpath.normpath(root)
    return path == root or path.startswith(root.rstrip("/") + "/")


def _protected(task: Task, absolute: str) -> bool:
    for pattern in task.spec.protected:
        full = posixpath.normpath(posixpath.join(task.spec.workdir, pattern))
        if _below(absolute, full) or fnmatch.fnmatchcase(absolute, full):
            return True
    return False


def _refusal(files: Mapping[str, bytes], disk_bytes: int) -> str:
    if sum(map(len, files.values())) > disk_bytes:
        return f"the files exceed the box's {disk_bytes} bytes of disk"
    for path in files:
        raw = path.encode("utf-8", "surrogateescape")
        if len(raw) > MAX_PATH_BYTES or max(map(len, raw.split(b"/"))) > MAX_NAME_BYTES:
            return f"a path is too long: {path[:80]!r}"
        parent = posixpath.dirname(path)
        while len(parent) > 1:
            if parent in files:
                return f"{parent!r} is both a file and a directory"
            parent = posixpath.dirname(parent)
    return ""
