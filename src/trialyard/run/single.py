"""One-off work without a training run: grade solutions, roll out a policy on one task."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from trialyard.core.clock import SystemClock
from trialyard.core.errors import ConfigError, NotFoundError, TaskError
from trialyard.core.grader import Submission, Verdict
from trialyard.core.ids import derive_seed, new_id
from trialyard.core.policy import Policy, Sampling
from trialyard.core.task import Task
from trialyard.core.trajectory import Trajectory
from trialyard.policies.openai import OpenAIPolicy
from trialyard.policies.scripted import ScriptedPolicy
from trialyard.rollout.reference import reference_outputs
from trialyard.rollout.rollout import Roller, RolloutRequest
from trialyard.run.wiring.boxes import open_grader, open_pool, open_store, tool_for
from trialyard.tasks.directory import load_task

POLICIES = ("reference", "noop", "random", "openai", "hf")
RANDOM_WORDS = ("return", "0", "None", "pass", "x", "(", ")", "\n", "def f():", "import os")


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy by name; `model` and `base_url` where the kind needs them."""

    kind: str
    model: str = ""
    base_url: str = ""


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


@asynccontextmanager
async def open_policy(choice: PolicyChoice, task: Task, seed: int) -> AsyncIterator[Policy]:
    """The policy of a choice. Raises `NotFoundError` or `ConfigError`."""
    policy: Policy
    if choice.kind == "reference":
        policy = ScriptedPolicy(reference_outputs(task))
    elif choice.kind == "noop":
        policy = ScriptedPolicy([""])
    elif choice.kind == "random":
        rng = random.Random(seed)
        policy = ScriptedPolicy([" ".join(rng.choices(RANDOM_WORDS, k=20)) for _ in range(100)])
    elif choice.kind == "openai":
        if not choice.base_url or not choice.model:
            raise ConfigError("--policy openai needs --base-url URL (up to /v1) and --model NAME")
        policy = OpenAIPolicy(choice.base_url, choice.model)
    elif choice.kind == "hf":
        if not choice.model:
            raise ConfigError("--policy hf needs --model DIRECTORY")
        from trialyard.policies.hf import HFPolicy

        policy = HFPolicy(Path(choice.model))
    else:
        raise NotFoundError(f"unknown policy {choice.kind!r}; known: {', '.join(POLICIES)}")
    try:
        yield policy
    finally:
        await policy.close()


async def roll_out(
    path: Path, choice: PolicyChoice, sampling: Sampling, *, samples: int, seed: int, out: Path
) -> list[Trajectory]:
    """`samples` graded trajectories of one task, stored below `out`."""
    task = load_task(path)
    async with (
        open_policy(choice, task, seed) as policy,
        open_pool(max_boxes=max(4, 2 * samples), warm=1) as pool,
    ):
        roller = Roller(
            policy=policy,
            pool=pool,
            grader=open_grader(pool),
            tool_for=tool_for,
            clock=SystemClock(),
        )
        run, group = new_id("rollout"), task.id
        trajectories = await asyncio.gather(
            *(
                roller.run(
                    RolloutRequest(run, group, i, task, sampling, derive_seed(seed, "member", i))
                )
                for i in range(samples)
            )
        )
    with open_store(out) as store:
        store.append(trajectories)
    return list(trajectories)
