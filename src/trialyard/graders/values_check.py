"""Values checks in the grader's box, and visible ones on the agent's own.

Expected values that only a run can give (``expected_source``) are computed in the
clean box, before any file of a submission is there.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from trialyard.core.cases import Case, load_cases
from trialyard.core.errors import GraderError, TaskError
from trialyard.core.grader import TestResult
from trialyard.core.outcome import CaseOutcome
from trialyard.core.sandbox import Sandbox
from trialyard.core.task import Check, Task, ValuesCheck
from trialyard.graders.finding import EVIDENCE_CHARS, Finding, GradingRun
from trialyard.graders.values import ValuesRun, run_cases

_CLEAN_FILE = "/dev/null"
_parsed = lru_cache(maxsize=4096)(load_cases)


def check_cases(task: Task, check: ValuesCheck) -> tuple[Case, ...]:
    """The cases of a check. Raises `TaskError` when its file is missing or broken."""
    trees = (task.environment, task.tests) if check.visible else (task.tests,)
    for tree in trees:
        if check.cases in tree:
            return _parsed(tree[check.cases], source=f"task {task.id}: {check.cases}")
    where = "environment/ or tests/" if check.visible else "tests/"
    raise TaskError(f"task {task.id}: check {check.name!r}: no {check.cases!r} below {where}")


async def resolve_cases(
    sandbox: Sandbox, task: Task, check: ValuesCheck, *, seed: int
) -> tuple[Case, ...]:
    """Cases with every expected value known. The box must be clean of submissions."""
    cases = check_cases(task, check)
    open_cases = [index for index, case in enumerate(cases) if case.expected_source]
    if not open_cases:
        return cases
    sources = [Case(expression=cases[index].expected_source) for index in open_cases]
    clean = check.model_copy(update={"file": _CLEAN_FILE})
    resolved = list(cases)
    for index, outcome in zip(
        open_cases, await run_cases(sandbox, clean, sources, seed=seed), strict=True
    ):
        if outcome.status not in ("passed", "failed"):
            raise TaskError(
                f"task {task.id}: {check.cases}, case {index}: expected_source gave no value: "
                f"{outcome.message}"
            )
        resolved[index] = replace(cases[index], expected=outcome.got, expected_source="")
    return tuple(resolved)


async def grade_values(sandbox: Sandbox, run: GradingRun, check: ValuesCheck) -> Finding:
    """Score is the fraction of cases that passed."""
    values = ValuesRun()
    cases = run.cases[check.name]
    outcomes = await run_cases(
        sandbox, check, cases, seed=run.seed, budget_s=run.left_s(), run=values
    )
    if not values.started:
        raise GraderError(
            f"check {check.name!r}: the runner did not start in a fresh box: "
            f"{_first_problem(outcomes)}"
        )
    num_passed = sum(outcome.status == "passed" for outcome in outcomes)
    return Finding(
        score=num_passed / len(outcomes),
        passed=num_passed == len(outcomes),
        trust="separated",
        evidence=f"{num_passed} of {len(outcomes)} cases passed{_first_problem(outcomes)}",
        tests=tuple(_test_result(check, outcome) for outcome in outcomes),
        tampering=tuple(dict.fromkeys(values.findings)),
        usages=tuple(values.usages),
    )


async def run_visible_check(task: Task, check: Check, sandbox: Sandbox) -> list[CaseOutcome]:
    """Outcomes of a visible values check on the agent's own box: feedback, never reward."""
    if not isinstance(check, ValuesCheck):
        raise TaskError(
            f"task {task.id}: check {check.name!r} of kind {check.kind!r} cannot be visible; "
            "make it a values check or hide it"
        )
    cases = await resolve_cases(sandbox, task, check, seed=0)
    return await run_cases(sandbox, check, cases)


def _first_problem(outcomes: Sequence[CaseOutcome]) -> str:
    failing = next((outcome for outcome in outcomes if outcome.status != "passed"), None)
    if failing is None:
        return ""
    return f"; case {failing.case} {failing.status} {failing.message[:200]}".rstrip()


def _test_result(check: ValuesCheck, outcome: CaseOutcome) -> TestResult:
    return TestResult(
        id=f"{check.name}[{outcome.case}]",
        status=outcome.status,
        duration_s=outcome.duration_s,
        message=outcome.message[:EVIDENCE_CHARS],
    )
