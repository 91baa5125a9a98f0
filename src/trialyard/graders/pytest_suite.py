"""Tests checks: a hardened pytest run, outside the workspace, with fixed expected ids.

The ids that must pass are known beforehand: one that is missing counts as not passed,
and nothing collected is a score of 0. ``passed`` and ``xpassed`` count; ``skipped``
and ``xfailed`` do not, since the code under test can cause both. A test that hangs or
ends the process costs itself: the rest go on in a new process.
"""

import json
import marshal
import secrets
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from trialyard.core.errors import FileAccessError, GraderError, SandboxLost
from trialyard.core.grader import TamperFinding, TestResult, TestStatus
from trialyard.core.sandbox import ExecResult, ExecStatus, ExecUsage, Sandbox
from trialyard.core.task import TestsCheck
from trialyard.graders.finding import EVIDENCE_CHARS, Finding, GradingRun
from trialyard.graders.layers import GRADER, PYTEST, PYTHON, PYTHON_FLAGS, run_environment

RUNNER = f"{GRADER}/pytest_runner.py"
TESTS_DIRECTORY = "/tests"
MAX_RESTARTS = 32
COUNTS_AS_PASSED = frozenset({"passed", "xpassed"})
_STATUSES: tuple[str, ...] = get_args(TestStatus)
_MARSHAL_VERSION = 2


@dataclass
class _Suite:
    """What the processes of one check said so far."""

    results: dict[str, TestResult] = field(default_factory=dict)
    collected: dict[str, None] = field(default_factory=dict)
    findings: dict[TamperFinding, None] = field(default_factory=dict)
    usages: list[ExecUsage] = field(default_factory=list)
    problem: str = ""
    started: bool = False
    """Whether pytest was there before any code of the candidate's could run."""

    def tamper(self, kind: str, path: str = "", evidence: str = "") -> None:
        self.findings[TamperFinding(kind=kind, path=path[:200], evidence=evidence)] = None


async def grade_tests(sandbox: Sandbox, run: GradingRun, check: TestsCheck) -> Finding:
    """Score is the fraction of expected tests that passed."""
    await sandbox.upload(run.task.tests, directory=TESTS_DIRECTORY)
    suite = _Suite()
    left_s = min(check.timeout_s, run.left_s())
    for _ in range(MAX_RESTARTS + 1):
        if left_s <= 0:
            break
        nonce = secrets.token_hex(8)
        result = await sandbox.run(
            [PYTHON, *PYTHON_FLAGS, RUNNER],
            stdin=_job(sandbox, run, check, suite, nonce),
            env=run_environment(run.seed),
            timeout_s=left_s,
        )
        suite.usages.append(result.usage)
        left_s -= result.usage.wall_s
        more = _collect(suite, result, nonce)
        if not await _unchanged(sandbox, run, suite, result) or not more:
            break
    if not suite.started:
        raise GraderError(
            f"check {check.name!r}: pytest did not start in a fresh box: {suite.problem}"
        )
    return _finding(check, suite)


async def _unchanged(sandbox: Sandbox, run: GradingRun, suite: _Suite, result: ExecResult) -> bool:
    """The tests lie in a directory of the box's user: report it when one was rewritten."""
    try:
        found = await sandbox.download(TESTS_DIRECTORY)
    except FileAccessError as error:
        suite.tamper("tests-changed", evidence=str(error))
        return False
    except SandboxLost as error:
        if result.status is ExecStatus.OOM and not error.host_evidence:
            return False  # the test before took the whole box along
        raise
    changed = [path for path, data in run.task.tests.items() if found.get(path) != data]
    for path in changed:
        suite.tamper("tests-changed", path)
    return not changed


def _job(sandbox: Sandbox, run: GradingRun, check: TestsCheck, suite: _Suite, nonce: str) -> bytes:
    job = {
        "nonce": nonce,
        "pytest": PYTEST,
        "tests": TESTS_DIRECTORY,
        "workdir": sandbox.workdir,
        "paths": list(check.paths),
        "limit_s": check.test_timeout_s,
        "done": list(suite.results),
    }
    return marshal.dumps(job, _MARSHAL_VERSION)


def _collect(suite: _Suite, result: ExecResult, nonce: str) -> bool:
    """Take in the events of one process; True when a new one should run the rest."""
    process = _Process()
    for kind, event in _events(suite, result, nonce):
        _take(suite, process, kind, event)
    if not process.canary_failed:  # whatever it reported is not known to be true
        process.results.clear()
    suite.results |= process.results
    status, message = _ending(result)
    if process.ended or not process.running:
        suite.problem = suite.problem or ("" if process.ended else message)
        if process.results and not process.ended and status != "timeout":
            suite.tamper("runner-stopped", evidence=f"after the tests, before the end: {message}")
        return False
    suite.results[process.running] = TestResult(id=process.running, status=status, message=message)
    return True


@dataclass
class _Process:
    """What one process said, and how far it came."""

    results: dict[str, TestResult] = field(default_factory=dict)
    running: str = ""
    canary_failed: bool = False
    ended: bool = False


def _take(suite: _Suite, process: _Process, kind: str, event: dict[str, Any]) -> None:
    """Take in one event of one process."""
    if kind == "ready":
        suite.started = True
    elif kind == "collected":
        suite.collected |= dict.fromkeys(_texts(event.get("ids")))
    elif kind == "collect":
        suite.problem = f"{_text(event, 'id')}: {_text(event, 'message')}"
    elif kind == "tamper":
        suite.tamper(_text(event, "sign"), _text(event, "path"))
    elif kind == "start":
        process.running = _text(event, "id")
    elif kind == "result":
        _take_result(suite, process, event)
    elif kind == "canary":
        process.canary_failed = _text(event, "status") == "failed"
        if not process.canary_failed:
            suite.tamper("canary-passed", evidence="a test that must fail did not")
    elif kind == "end":
        process.ended = True


def _events(suite: _Suite, result: ExecResult, nonce: str) -> list[tuple[str, dict[str, Any]]]:
    events = []
    for raw in result.stdout.split(b"\n")[:-1]:
        parts = raw.decode("ascii", "replace").split(" ", 2)
        try:
            event = json.loads(parts[2]) if len(parts) == 3 and parts[0] == nonce else None
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            events.append((parts[1], event))
        else:
            suite.tamper("forged-result", "stdout", "a line that the runner did not write")
    return events


def _take_result(suite: _Suite, process: _Process, event: dict[str, Any]) -> None:
    test_id, status = _text(event, "id"), _text(event, "status")
    if test_id != process.running or test_id in suite.results or status not in _STATUSES:
        suite.tamper("forged-result", test_id, "a result for a test that was not running")
        return
    process.running = ""
    duration_s = event.get("duration_s")
    process.results[test_id] = TestResult(
        id=test_id,
        status=cast(TestStatus, status),
        duration_s=min(max(0.0, duration_s), 1e9) if isinstance(duration_s, float) else 0.0,
        message=_text(event, "message")[:EVIDENCE_CHARS],
    )


def _finding(check: TestsCheck, suite: _Suite) -> Finding:
    expected = check.expected or tuple(suite.collected)
    tests = tuple(
        suite.results.get(test_id)
        or TestResult(id=test_id, status="not_run", message=suite.problem[:EVIDENCE_CHARS])
        for test_id in expected
    )
    num_passed = sum(test.status in COUNTS_AS_PASSED for test in tests)
    score = num_passed / len(tests) if tests else 0.0
    evidence = f"{num_passed} of {len(tests)} tests passed"
    return Finding(
        score=score,
        passed=bool(tests) and num_passed == len(tests),
        trust="hardened",
        evidence=f"{evidence}; {suite.problem}" if suite.problem else evidence,
        tests=tests,
        tampering=tuple(suite.findings),
        usages=tuple(suite.usages),
    )


def _ending(result: ExecResult) -> tuple[TestStatus, str]:
    """What it means that the process ended in the middle of a test."""
    alarm = result.status is ExecStatus.SIGNALED and result.signal == 14
    if alarm or result.status is ExecStatus.TIMEOUT:
        return "timeout", "the time limit was reached"
    if result.status is ExecStatus.EXITED:
        said = result.stderr[-200:].decode("utf-8", "replace").strip()
        return "error", f"the process ended early with code {result.exit_code} {said}".rstrip()
    return "error", f"the process ended with status {result.status.value}"


def _text(event: dict[str, Any], key: str) -> str:
    value = event.get(key)
    return value[:2000] if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
