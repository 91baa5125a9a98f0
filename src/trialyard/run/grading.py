"""Grade solutions of tasks apart from any training run."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from trialyard.core.errors import ConfigError, NotFoundError
from trialyard.core.grader import Submission, Verdict
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import Task
from trialyard.graders.oracle import reference_submission
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
    tasks = [(path, load_task(path)) for path in paths for _ in range(runs)]
    slots = asyncio.Semaphore(jobs)
    verdicts: list[Verdict] = []
    async with open_pool(max_boxes=max(4, 2 * jobs), warm=min(jobs, 4)) as pool:
        grader = open_grader(pool)

        async def one(task: Task) -> Verdict:
            async with slots:
                submission = await submission_of(pool, task, solution)
                return await grader.grade(task, submission, seed=seed)

        running = [(path, asyncio.ensure_future(one(task))) for path, task in tasks]
        try:
            for path, verdict in running:
                verdicts.append(await verdict)
                show(path, verdicts[-1])
        finally:
            for _, verdict in running:
                verdict.cancel()
            await asyncio.gather(*(verdict for _, verdict in running), return_exceptions=True)
    return verdicts


async def submission_of(pool: SandboxPool, task: Task, solution: str) -> Submission:
    """``gold``, ``none``, a folder of files, or the one file that the task asks for."""
    if solution == "none":
        return Submission()
    if solution == "gold":
        return await reference_submission(pool, task)
    return submission_at(task, Path(solution))


def submission_at(task: Task, path: Path) -> Submission:
    """A folder of files, or the one file that the task asks for."""
    if path.is_file():
        return Submission(files={task.spec.agent.answer_file: path.read_bytes()})
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        if any(file.is_symlink() for file in files):
            raise ConfigError(f"--solution {path}: links are not taken; copy the files")
        return Submission(files={str(f.relative_to(path)): f.read_bytes() for f in files})
    raise NotFoundError(f"--solution {str(path)!r}: not gold or none, and no such file or folder")
