"""Grade solutions of tasks apart from any training run."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from trialyard.core.errors import ConfigError, NotFoundError, TaskError
from trialyard.core.grader import Submission, Verdict
from trialyard.core.task import Task
from trialyard.run.wiring.boxes import open_grader, open_pool
from trialyard.tasks.directory import load_task


async def grade_tasks(
    paths: Sequence[Path],
    solution: str,
    *,
    runs: int,
    seed: int,
    jobs: int,
    show: Callable[[Path, Verdict], None],
) -> list[Verdict]:
    """Verdicts in the order of `paths`, `runs` for each; `show` is called in that order."""
    if runs < 1 or jobs < 1:
        raise ConfigError("--runs and --jobs must be at least 1")
    work = []
    for path in paths:
        task = load_task(path)
        work += [(path, task, submission_of(task, solution))] * runs
    slots = asyncio.Semaphore(jobs)
    verdicts: list[Verdict] = []
    async with open_pool(max_boxes=max(4, 2 * jobs), warm=min(jobs, 4)) as pool:
        grader = open_grader(pool)

        async def one(task: Task, submission: Submission) -> Verdict:
            async with slots:
                return await grader.grade(task, submission, seed=seed)

        async with asyncio.TaskGroup() as group:
            running = [
                (path, group.create_task(one(task, submission))) for path, task, submission in work
            ]
            for path, verdict in running:
                verdicts.append(await verdict)
                show(path, verdicts[-1])
    return verdicts


def submission_of(task: Task, solution: str) -> Submission:
    """``gold``, ``none``, a folder of files, or the one file that the task asks for."""
    if solution == "none":
        return Submission()
    if solution == "gold":
        if not task.solution:
            raise TaskError(f"task {task.id} has no reference solution (solution/ is empty)")
        return Submission(files=dict(task.solution))
    path = Path(solution)
    if path.is_file():
        return Submission(files={task.spec.agent.answer_file: path.read_bytes()})
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        if any(file.is_symlink() for file in files):
            raise ConfigError(f"--solution {solution}: links are not taken; copy the files")
        return Submission(files={str(f.relative_to(path)): f.read_bytes() for f in files})
    raise NotFoundError(f"--solution {solution!r}: not gold or none, and no such file or folder")
