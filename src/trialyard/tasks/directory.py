"""Task directories: Harbor's format, read and written; our additions under [trialyard].

    <task>/ task.toml  instruction.md  environment/  tests/  solution/

A task without [[trialyard.checks]] gets one script check for ``tests/test.sh`` and a
shell agent. Boxes have no network, whatever the file says. Files that Harbor reads and
we do not are kept, so that a round trip changes neither meaning nor hash.
Invariant: ``load_task(save_task(t)).hash == t.hash``.
"""

import os
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from trialyard.core.errors import NotFoundError, TaskError
from trialyard.core.task import Task
from trialyard.tasks.manifest import read_manifest, write_manifest
from trialyard.tasks.toml import dump_toml
from trialyard.tasks.trees import read_file, read_tree, write_tree

MANIFEST = "task.toml"
INSTRUCTION = "instruction.md"
TREES = ("environment", "tests", "solution")


def load_task(path: Path) -> Task:
    """The task in a directory. Raises `NotFoundError`, or `TaskError` naming file and field."""
    if not path.is_dir():
        raise NotFoundError(f"no task directory at {path}")
    if not (path / MANIFEST).exists():
        raise TaskError(f"{path}: no {MANIFEST}, so this is no task directory")
    manifest = path / MANIFEST
    table = _parse(manifest)
    trees = {name: read_tree(path / name) for name in TREES}
    spec = read_manifest(
        table,
        source=str(manifest),
        instruction=_text(path / INSTRUCTION),
        default_id=path.resolve().name,
        tests=trees["tests"],
    )
    return Task(spec=spec, **trees)


def save_task(task: Task, path: Path) -> None:
    """Write a task as a directory at `path`, replacing a task that is there.

    The directory appears whole or not at all. Raises `TaskError` when `path` holds
    something that is no task.
    """
    if path.exists() and not (path / MANIFEST).exists() and any(path.iterdir()):
        raise TaskError(f"{path} exists and is no task directory; choose another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        staging.chmod(0o755)
        (staging / INSTRUCTION).write_text(task.spec.instruction, encoding="utf-8", newline="")
        (staging / MANIFEST).write_text(dump_toml(write_manifest(task.spec)), encoding="utf-8")
        for name in TREES:
            write_tree(staging / name, getattr(task, name))
        if path.exists():
            shutil.rmtree(path)
        staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def find_tasks(directory: Path) -> list[Path]:
    """Task directories at or below `directory`, sorted; links are not followed."""
    if not directory.is_dir():
        raise NotFoundError(f"no directory at {directory}")
    if (directory / MANIFEST).is_file():
        return [directory]
    found: list[Path] = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            found += find_tasks(Path(entry.path))
    return found


def _parse(manifest: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_file(manifest).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TaskError(f"{manifest}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{manifest}: not TOML: {error}") from error  # the message has the line


def _text(path: Path) -> str:
    if not path.exists() and not path.is_symlink():
        raise TaskError(f"{path}: missing; write what the agent shall do there")
    try:
        return read_file(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
