"""Real problems in real boxes: MBPP's references earn everything, nothing earns little."""

import asyncio

import pytest

from tests.data import MBPP
from trialyard.core.clock import SystemClock
from trialyard.core.grader import Submission
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import Task
from trialyard.graders.fresh_box import FreshBoxGrader
from trialyard.graders.values_check import run_visible_check
from trialyard.tasks.importers.mbpp import import_mbpp

pytestmark = pytest.mark.skipif(not MBPP.is_file(), reason="MBPP's data file is not here")
ODD = (126, 367, 486, 533, 596, 601, 912, 927)
"""Problems whose asserts are more than a call with literals."""


def mbpp_tasks(*numbers: int) -> list[Task]:
    wanted = {f"mbpp/{number}" for number in numbers}
    return [t for t in import_mbpp(MBPP) if isinstance(t, Task) and t.id in wanted]


async def rewards(pool: SandboxPool, answers: list[tuple[Task, Submission]]) -> dict[str, float]:
    grader, slots = FreshBoxGrader(pool, SystemClock()), asyncio.Semaphore(4)

    async def one(task: Task, submission: Submission) -> tuple[str, float]:
        async with slots:
            verdict = await grader.grade(task, submission)
        assert (verdict.status, verdict.tampering) == ("graded", ())
        return task.id, verdict.reward if verdict.reward is not None else -1.0

    return dict(await asyncio.gather(*(one(*answer) for answer in answers)))


@pytest.mark.slow
async def test_a_hundred_references_get_1_and_empty_answers_get_less_than_half(
    pool: SandboxPool,
) -> None:
    tasks = mbpp_tasks(*range(601, 701))
    assert len(tasks) == 100
    gold = await rewards(pool, [(task, Submission(task.solution)) for task in tasks])
    assert set(gold.values()) == {1.0}, {k: v for k, v in gold.items() if v != 1.0}
    empty = await rewards(pool, [(t, Submission({"solution.py": b""})) for t in tasks])
    assert max(empty.values()) < 0.5
    nothing = await rewards(pool, [(task, Submission()) for task in tasks[:5]])
    assert set(nothing.values()) == {0.0}


async def test_odd_asserts_are_graded_by_values_too(pool: SandboxPool) -> None:
    tasks = mbpp_tasks(*ODD)
    gold = await rewards(pool, [(task, Submission(task.solution)) for task in tasks])
    assert gold == {f"mbpp/{number}": 1.0 for number in ODD}


async def test_the_visible_test_runs_on_the_agents_own_box(pool: SandboxPool) -> None:
    (task,) = mbpp_tasks(602)
    async with pool.acquire(image="host", limits=task.spec.limits, owner="test") as sandbox:
        await sandbox.upload(dict(task.solution), directory=sandbox.workdir)
        (outcome,) = await run_visible_check(task, task.visible_checks[0], sandbox)
        assert (outcome.status, outcome.got) == ("passed", outcome.expected)
        await sandbox.write("solution.py", b"def first_repeated_char(s): return 1")
        (outcome,) = await run_visible_check(task, task.visible_checks[0], sandbox)
        assert (outcome.status, outcome.got) == ("failed", 1)
