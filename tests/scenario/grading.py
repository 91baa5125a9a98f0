"""What the grading scenarios share: small tasks, and grading one answer to them."""

from collections.abc import Mapping

from trialyard.core.cases import Case, dump_cases
from trialyard.core.clock import SystemClock
from trialyard.core.grader import Submission, Verdict
from trialyard.core.sandbox import Limits, SandboxPool
from trialyard.core.task import Check, Rubric, Task, TaskSpec, TestsCheck, ValuesCheck
from trialyard.graders.fresh_box import FreshBoxGrader

Answer = str | Mapping[str, str | bytes | None]


def values_task(
    cases: list[Case], *, function: str = "f", timeout_s: float = 10.0, **spec: object
) -> Task:
    """One hidden values check on ``solution.py``."""
    check = ValuesCheck(
        name="values",
        file="solution.py",
        function=function,
        cases="cases.json",
        timeout_s=timeout_s,
    )
    return task_of((check,), {"cases.json": dump_cases(cases)}, **spec)


def suite_task(tests: Mapping[str, str], *expected: str, **check: float) -> Task:
    """One hidden tests check over all modules of `tests`; `expected` are its ids."""
    suite = TestsCheck.model_validate(
        {"name": "suite", "paths": tuple(tests), "expected": expected, **check}
    )
    return task_of((suite,), {path: text.encode() for path, text in tests.items()})


def task_of(checks: tuple[Check, ...], tests: Mapping[str, bytes], **spec: object) -> Task:
    fields = {"id": "scenario", "instruction": "", "checks": checks, "limits": Limits(), **spec}
    return Task(TaskSpec.model_validate(fields), tests=tests)


def submission_of(answer: Answer) -> Submission:
    files = {"solution.py": answer} if isinstance(answer, str) else answer
    return Submission(
        {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
    )


async def grade(pool: SandboxPool, task: Task, answer: Answer, *, seed: int = 0) -> Verdict:
    return await FreshBoxGrader(pool, SystemClock()).grade(task, submission_of(answer), seed=seed)


def kinds(verdict: Verdict) -> set[str]:
    """Kinds of the tamper findings."""
    return {finding.kind for finding in verdict.tampering}


def statuses(verdict: Verdict) -> list[str]:
    return [test.status for test in verdict.tests]


__all__ = ["Rubric", "grade", "kinds", "statuses", "submission_of", "suite_task", "values_task"]
