"""Grades a submission in fresh boxes, never on the agent's own (DESIGN 4.6).

Flow: lay the submission out over the task's files, open a box from the task's image,
run the hidden checks there, combine them by the rubric. All values checks share one
box (they only compute); every other check gets a box of its own, so that what a
candidate leaves running after one check is gone before the next.

Whose fault a failure is follows from the supervisor's evidence alone: see `_attempts`.
"""

from typing import Any

from trialyard.core.clock import Clock
from trialyard.core.errors import GraderError, NotFoundError, SandboxError, SandboxLost, TaskError
from trialyard.core.grader import Submission, Verdict
from trialyard.core.ids import new_id
from trialyard.core.sandbox import Sandbox, SandboxPool
from trialyard.core.task import Check, ScriptCheck, Task, ValuesCheck
from trialyard.graders.finding import Finding, GradingRun
from trialyard.graders.layers import compile_runners, grader_version
from trialyard.graders.pytest_suite import grade_tests
from trialyard.graders.script import grade_script
from trialyard.graders.values_check import check_cases, grade_values, resolve_cases
from trialyard.graders.verdict import ungraded, verdict_of, zero
from trialyard.graders.workspace import Workspace, fill, lay_out

MAX_LOSSES = 2
"""So many losses of one kind (explained by the host, or not) end the grading."""


class FreshBoxGrader:
    """The grader over any pool of boxes."""

    def __init__(
        self, pool: SandboxPool, clock: Clock, *, acquire_timeout_s: float = 300.0
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._acquire_timeout_s = acquire_timeout_s
        self.version = grader_version()
        compile_runners()

    async def grade(self, task: Task, submission: Submission, *, seed: int = 0) -> Verdict:
        """Verdict of the hidden checks; a machine's or task's failure is ``ungraded``."""
        identity = {"task_hash": task.hash, "grader_version": self.version, "seed": seed}
        try:
            _validate(task)
        except TaskError as error:
            return ungraded("task", str(error), identity)
        try:
            identity["image_digest"] = self._pool.image_digest(task.spec.image)
        except (NotFoundError, SandboxError) as error:
            return ungraded("environment", str(error), identity)
        workspace = lay_out(task, submission)
        if workspace.refused:
            return zero(task, workspace, f"submission refused: {workspace.refused}", identity)
        return await self._attempts(task, workspace, identity)

    async def _attempts(
        self, task: Task, workspace: Workspace, identity: dict[str, Any]
    ) -> Verdict:
        """Try again after a failure, and decide whose fault it was when it stays so.

        A loss that the host explains, and any other error of the machine, is the
        environment's. A loss that nothing but the box itself explains is retried once,
        and then the model's: otherwise crashing the box would be a way out of a zero.
        """
        explained = unexplained = 0
        while True:
            try:
                findings = await self._attempt(task, workspace, identity["seed"])
                return verdict_of(task, workspace, findings, identity)
            except SandboxLost as error:
                explained += bool(error.host_evidence)
                unexplained += not error.host_evidence
                reason = f"{error} ({error.host_evidence or 'no evidence from the host'})"
            except TaskError as error:
                return ungraded("task", str(error), identity)
            except (GraderError, NotFoundError, SandboxError) as error:
                explained += 1
                reason = f"{type(error).__name__}: {error}"
            if unexplained == MAX_LOSSES:
                return zero(task, workspace, f"box lost again: {reason}", identity)
            if explained == MAX_LOSSES:
                return ungraded("environment", reason, identity)

    async def _attempt(self, task: Task, workspace: Workspace, seed: int) -> list[Finding]:
        """Findings of the hidden checks, in order."""
        found: dict[str, Finding] = {}
        left_s = task.spec.grader_timeout_s
        for checks in _boxes(task):
            async with self._pool.acquire(
                image=task.spec.image,
                limits=task.spec.limits,
                owner=new_id("grade"),
                workdir=task.spec.workdir,
                timeout_s=self._acquire_timeout_s,
            ) as sandbox:
                started_s = self._clock.monotonic_s()
                cases = {
                    check.name: await resolve_cases(sandbox, task, check, seed=seed)
                    for check in checks
                    if isinstance(check, ValuesCheck)
                }
                await fill(sandbox, workspace)
                run = GradingRun(task, seed, self._clock, started_s + left_s, cases)
                for check in checks:
                    found[check.name] = await _grade_check(sandbox, run, check)
                left_s = run.left_s()
        return [found[check.name] for check in task.hidden_checks]


async def _grade_check(sandbox: Sandbox, run: GradingRun, check: Check) -> Finding:
    if isinstance(check, ValuesCheck):
        return await grade_values(sandbox, run, check)
    if isinstance(check, ScriptCheck):
        return await grade_script(sandbox, run, check)
    return await grade_tests(sandbox, run, check)


def _boxes(task: Task) -> list[list[Check]]:
    """Hidden checks by the box that they share."""
    values: list[Check] = [c for c in task.hidden_checks if isinstance(c, ValuesCheck)]
    others = [c for c in task.hidden_checks if not isinstance(c, ValuesCheck)]
    return [values] * bool(values) + [[check] for check in others]


def _validate(task: Task) -> None:
    """Refuse a task that cannot be graded whatever the submission."""
    if not task.hidden_checks:
        raise TaskError(f"task {task.id}: no hidden check, so nothing can be graded; add one")
    names = [check.name for check in task.spec.checks]
    double = next((name for name in names if names.count(name) > 1), None)
    if double:
        raise TaskError(f"task {task.id}: two checks are named {double!r}; rename one")
    for check in task.hidden_checks:
        if isinstance(check, ValuesCheck):
            check_cases(task, check)
        elif isinstance(check, ScriptCheck) and check.script not in task.tests:
            raise TaskError(f"task {task.id}: no {check.script!r} below tests/")
