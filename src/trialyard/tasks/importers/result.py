"""What an import gave: tasks written, and records that could not be used."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trialyard.core.errors import TaskError
from trialyard.core.task import Task
from trialyard.tasks.directory import load_task, save_task


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """A record that was left out, and why."""

    source: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """`written` and `unchanged` are task directories, in the order of the records."""

    written: tuple[Path, ...]
    unchanged: tuple[Path, ...]
    problems: tuple[ImportProblem, ...]

    @property
    def imported(self) -> int:
        """Tasks that are there now."""
        return len(self.written) + len(self.unchanged)


def write_tasks(items: Iterable[Task | ImportProblem], dest: Path) -> ImportResult:
    """Save each task at ``dest/<last part of its id>``; equal tasks are left alone."""
    written: list[Path] = []
    unchanged: list[Path] = []
    problems: list[ImportProblem] = []
    for item in items:
        if isinstance(item, ImportProblem):
            problems.append(item)
            continue
        path = dest / item.id.rpartition("/")[2]
        if _same_task(path, item):
            unchanged.append(path)
        else:
            save_task(item, path)
            written.append(path)
    return ImportResult(tuple(written), tuple(unchanged), tuple(problems))


def _same_task(path: Path, task: Task) -> bool:
    if not path.exists():
        return False
    try:
        return load_task(path).hash == task.hash
    except TaskError:
        return False
