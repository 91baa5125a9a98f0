"""What every grader promises."""

from collections.abc import Callable

import pytest

from tests.scenario.grading import values_task
from trialyard.core.cases import Case
from trialyard.core.clock import SystemClock
from trialyard.core.grader import Grader, Submission, Verdict
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import Task
from trialyard.graders.cache import CachedGrader
from trialyard.graders.fresh_box import FreshBoxGrader
from trialyard.testing.grader import FunctionGrader

SOLUTION = b"def f(x): return x + 1\n"
BASE = values_task([Case((1,), expected=2), Case((5,), expected=6)])
TASK = Task(BASE.spec, tests=BASE.tests, solution={"solution.py": SOLUTION})


def fresh(pool: SandboxPool) -> Grader:
    return FreshBoxGrader(pool, SystemClock())


def cached(pool: SandboxPool) -> Grader:
    inner = FreshBoxGrader(pool, SystemClock())
    return CachedGrader(inner, image_digest=pool.image_digest, version=inner.version)


def fake(pool: SandboxPool) -> Grader:
    return FunctionGrader()


@pytest.fixture(params=[fresh, cached, fake])
def grader(request: pytest.FixtureRequest, pool: SandboxPool) -> Grader:
    make: Callable[[SandboxPool], Grader] = request.param
    return make(pool)


async def test_the_reference_solution_gets_everything(grader: Grader) -> None:
    verdict = await grader.grade(TASK, Submission(TASK.solution))
    assert (verdict.status, verdict.reward, verdict.passed) == ("graded", 1.0, True)
    assert verdict.fault == "none"


WRONG: list[dict[str, bytes | None]] = [
    {},
    {"solution.py": b""},
    {"solution.py": None},
    {"solution.py": b"\xff\x00 not python"},
    {"solution.py": b"def f(x): raise SystemExit"},
    {"solution.py": b"import os, signal; os.kill(0, signal.SIGKILL)"},
    {"../../etc/passwd": b"", "/root/x": b"", "a" * 5000: b"", "\0": b""},
    {"d": b"", "d/e": b""},
]


@pytest.mark.parametrize("files", WRONG)
async def test_nothing_that_a_submission_holds_raises(
    grader: Grader, files: dict[str, bytes | None]
) -> None:
    verdict = await grader.grade(TASK, Submission(files))
    assert (verdict.status, verdict.reward, verdict.passed) == ("graded", 0.0, False)


async def test_a_verdict_names_what_was_graded_and_survives_json(grader: Grader) -> None:
    verdict = await grader.grade(TASK, Submission(TASK.solution), seed=7)
    assert (verdict.task_hash, verdict.seed) == (TASK.hash, 7)
    assert verdict.image_digest
    assert verdict.grader_version
    assert Verdict.model_validate(verdict.to_json()) == verdict


async def test_equal_answers_get_equal_findings(grader: Grader) -> None:
    first, second = [await grader.grade(TASK, Submission({"solution.py": b""})) for _ in range(2)]
    assert (first.reward, first.checks, first.fault) == (second.reward, second.checks, second.fault)
