"""Values checks: the candidate computes in its own process, the comparison is here.

Invariants: expected values never enter the box; what comes back is bounded JSON that
only decodes to exact built-in types; a crash, hang or exit costs its own case and the
rest go on in a new process of the same box.
"""

import json
import marshal
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trialyard.core import plain
from trialyard.core.cases import Case
from trialyard.core.errors import SandboxLost
from trialyard.core.grader import TamperFinding
from trialyard.core.outcome import CaseOutcome, CaseStatus
from trialyard.core.sandbox import ExecResult, ExecStatus, ExecUsage, Sandbox
from trialyard.core.task import ValuesCheck
from trialyard.graders.compare import matches
from trialyard.graders.layers import GRADER, PYTHON, PYTHON_FLAGS, run_environment

COMMAND = (
    PYTHON,
    *PYTHON_FLAGS,
    "-c",
    f"import sys; sys.path.insert(0, {GRADER!r}); import values_runner as runner; "
    "del sys.path[0]; runner.main()",
)
"""Imported, not run as a script: then its compiled form is used, which saves a fifth."""
MAX_RESTARTS = 16
START_S = 10.0
"""Room for starting the interpreter on a busy host; not the candidate's time."""
MAX_VALUE_CHARS = 200_000
_SIGALRM = 14
_MARSHAL_VERSION = 2  # the oldest form with every plain type: any interpreter reads it


@dataclass
class ValuesRun:
    """Outcomes so far of one check, with what it used and the signs of forgery."""

    outcomes: dict[int, CaseOutcome] = field(default_factory=dict)
    usages: list[ExecUsage] = field(default_factory=list)
    findings: list[TamperFinding] = field(default_factory=list)
    started: bool = False
    """Whether a runner came as far as loading the candidate; if not, it is not to blame."""


async def run_cases(
    sandbox: Sandbox,
    check: ValuesCheck,
    cases: Sequence[Case],
    *,
    seed: int = 0,
    budget_s: float | None = None,
    run: ValuesRun | None = None,
) -> list[CaseOutcome]:
    """Outcome of every case, in order; the candidate's file must be in the box already.

    `budget_s` bounds the whole check (cases it does not reach are ``not_run``). Raises
    `SandboxError` only for the machine.
    """
    run = run if run is not None else ValuesRun()
    pending = list(range(len(cases)))
    left_s = budget_s if budget_s is not None else check.timeout_s * (len(cases) + 1) + START_S
    out_of_memory = False
    for _ in range(MAX_RESTARTS + 1):
        if not pending or left_s <= 0:
            break
        job = _Job(check, cases, pending, workdir=sandbox.workdir)
        wall_s = min(left_s, check.timeout_s * (len(pending) + 1) + START_S)
        try:
            result = await sandbox.run(
                COMMAND, stdin=job.payload(), env=run_environment(seed), timeout_s=wall_s
            )
        except SandboxLost as error:
            if out_of_memory and not error.host_evidence:
                break  # the case before took the whole box along
            raise
        run.usages.append(result.usage)
        left_s -= result.usage.wall_s
        pending = job.collect(result, run)
        out_of_memory = result.status is ExecStatus.OOM
    for index in pending:
        message = "NotRun: the time or the box was used up, or it crashed too often"
        run.outcomes[index] = _outcome(cases, index, "not_run", message=message)
    return [run.outcomes[index] for index in range(len(cases))]


class _Job:
    """One process of the runner: what it is told, and what its lines mean."""

    def __init__(
        self, check: ValuesCheck, cases: Sequence[Case], pending: list[int], *, workdir: str
    ) -> None:
        self.check, self.cases, self.pending = check, cases, pending
        self.path = check.file if check.file.startswith("/") else f"{workdir}/{check.file}"
        self.nonce = secrets.token_hex(8)

    def payload(self) -> bytes:
        calls = [
            (i, case.args, dict(case.kwargs), case.expression, case.setup)
            for i, case in enumerate(self.cases)
            if i in self.pending
        ]
        job = {
            "nonce": self.nonce,
            "path": self.path,
            "function": "" if all(case[3] for case in calls) else self.check.function,
            "limit_s": self.check.timeout_s,
            "max_chars": MAX_VALUE_CHARS,
            "cases": calls,
        }
        return marshal.dumps(job, _MARSHAL_VERSION)

    def collect(self, result: ExecResult, run: ValuesRun) -> list[int]:
        """Record what the process gave; returns the cases that a new one should run."""
        loaded, problem = False, ""
        for kind, index, duration_s, text in self._lines(result, run):
            if kind == "ready":
                run.started = True
            elif kind == "loaded":
                loaded = True
            elif kind == "import":
                problem = _message(text)
            elif index in self.pending and index not in run.outcomes:
                run.outcomes[index] = self._judge(kind, index, duration_s, text)
            else:
                run.findings.append(_forged("a second result for one case"))
        missing = [index for index in self.pending if index not in run.outcomes]
        truncated = result.stdout_bytes > len(result.stdout)
        if not missing or (truncated and len(missing) < len(self.pending)):
            return missing  # what did not fit into the output limit is asked for again
        status, message = _ending(result, problem)
        if loaded and not problem:
            run.outcomes[missing[0]] = _outcome(self.cases, missing[0], status, message=message)
            return missing[1:]
        for index in missing:
            run.outcomes[index] = _outcome(self.cases, index, status, message=message)
        return []

    def _lines(self, result: ExecResult, run: ValuesRun) -> list[tuple[str, int, float, str]]:
        lines = []
        for raw in result.stdout.split(b"\n")[:-1]:
            parts = raw.decode("ascii", "replace").split(" ", 4)
            if len(parts) != 5 or parts[0] != self.nonce:
                run.findings.append(_forged("a line that the runner did not write"))
                continue
            try:
                lines.append((parts[1], int(parts[2]), max(0.0, float(parts[3])), parts[4]))
            except ValueError:
                run.findings.append(_forged("a malformed line"))
        return lines

    def _judge(self, kind: str, index: int, duration_s: float, text: str) -> CaseOutcome:
        case = self.cases[index]
        if kind != "value":
            return _outcome(
                self.cases, index, "error", message=_message(text), duration_s=duration_s
            )
        try:
            got = plain.loads(text)
        except plain.PlainError as error:
            message = f"NotPlain: {error}"
            return _outcome(self.cases, index, "error", message=message, duration_s=duration_s)
        passed = matches(case, got, case.expected)
        return CaseOutcome(
            case=index,
            status="passed" if passed else "failed",
            args=case.args,
            expected=case.expected,
            got=got,
            duration_s=duration_s,
        )


def _outcome(
    cases: Sequence[Case],
    index: int,
    status: CaseStatus,
    *,
    message: str,
    duration_s: float = 0.0,
) -> CaseOutcome:
    case = cases[index]
    return CaseOutcome(
        case=index,
        status=status,
        args=case.args,
        expected=case.expected,
        message=message,
        duration_s=duration_s,
    )


def _ending(result: ExecResult, problem: str) -> tuple[CaseStatus, str]:
    """What it means that the process ended before the case had a result."""
    if problem:
        return "error", problem
    if result.status is ExecStatus.TIMEOUT:
        return "timeout", "Timeout: the time limit was reached"
    if result.status is ExecStatus.SIGNALED and result.signal == _SIGALRM:
        return "timeout", "Timeout: the time limit of the case was reached"
    if result.status is ExecStatus.OOM:
        return "error", "OutOfMemory: the box ran out of memory"
    if result.stdout_bytes > len(result.stdout):
        return "error", "TooLarge: the results did not fit into the output limit"
    if result.status is ExecStatus.SIGNALED:
        return "error", f"Killed: the process died of signal {result.signal}"
    return "error", f"Exited: the process ended early with code {result.exit_code}"


def _message(text: str) -> str:
    try:
        message: Any = json.loads(text)
    except ValueError:
        message = None
    return str(message)[:500] if message else "Error: no message"


def _forged(evidence: str) -> TamperFinding:
    return TamperFinding(kind="forged-result", path="stdout", evidence=evidence)
