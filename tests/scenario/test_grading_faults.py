"""Whose fault it was: a broken machine is never a zero, a broken box is no way out of one.

The boxes are real; the faults are put between them and the grader.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.scenario.grading import grade, submission_of, suite_task, task_of, values_task
from trialyard.core.cases import Case, dump_cases
from trialyard.core.clock import SystemClock
from trialyard.core.errors import (
    FileAccessError,
    NotFoundError,
    ResourceExhausted,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)
from trialyard.core.grader import Verdict
from trialyard.core.sandbox import Sandbox, SandboxPool
from trialyard.core.task import Task, ValuesCheck
from trialyard.graders.fresh_box import FreshBoxGrader

TASK = values_task([Case((i,), expected=i) for i in range(3)])
RIGHT = "def f(x): return x\n"


class FaultyPool:
    """A pool whose boxes fail at one operation, as often as `faults` says."""

    def __init__(self, pool: SandboxPool, operation: str, faults: list[Exception]) -> None:
        self._pool, self._operation, self._faults = pool, operation, faults
        self.acquired = 0

    def strike(self, operation: str) -> None:
        if operation == self._operation and self._faults:
            raise self._faults.pop(0)

    def image_digest(self, image: str) -> str:
        self.strike("image_digest")
        return self._pool.image_digest(image)

    @asynccontextmanager
    async def acquire(self, **options: Any) -> AsyncIterator[Sandbox]:
        self.acquired += 1
        self.strike("acquire")
        async with self._pool.acquire(**options) as box:
            yield FaultyBox(box, self)

    def fork(self, *args: Any, **options: Any) -> Any:
        return self._pool.fork(*args, **options)

    def counters(self) -> dict[str, int]:
        return self._pool.counters()

    async def close(self) -> None:
        """The wrapped pool lives on."""


class FaultyBox:
    def __init__(self, box: Sandbox, pool: FaultyPool) -> None:
        self._box, self._pool = box, pool

    def __getattr__(self, name: str) -> Any:
        if name in ("run", "upload", "write", "download"):
            self._pool.strike(name)
        return getattr(self._box, name)


def host_lost() -> SandboxLost:
    return SandboxLost("gone", host_evidence="killed from outside by signal 9")


def box_lost() -> SandboxLost:
    return SandboxLost("gone")


async def faulty(
    pool: SandboxPool, operation: str, *faults: Exception
) -> tuple[Verdict, FaultyPool]:
    broken = FaultyPool(pool, operation, list(faults))
    return await grade(cast(SandboxPool, broken), TASK, RIGHT), broken


MACHINE_FAULTS: list[tuple[str, Callable[[], Exception]]] = [
    ("run", host_lost),
    ("upload", host_lost),
    ("acquire", host_lost),
    ("acquire", lambda: ResourceExhausted("no room")),
    ("acquire", lambda: SandboxUnavailable("the cgroup is gone")),
    ("acquire", lambda: NotFoundError("image 'host' does not exist")),
    ("upload", lambda: FileAccessError(28, "no space left on the host")),
    ("run", lambda: SandboxError("the supervisor broke")),
]


@pytest.mark.parametrize(("operation", "fault"), MACHINE_FAULTS)
async def test_a_machine_fault_is_retried_and_then_forgotten(
    pool: SandboxPool, operation: str, fault: Callable[[], Exception]
) -> None:
    verdict, broken = await faulty(pool, operation, fault())
    assert (verdict.status, verdict.reward, verdict.fault) == ("graded", 1.0, "none")
    assert broken.acquired == 2


@pytest.mark.parametrize(("operation", "fault"), MACHINE_FAULTS)
async def test_a_machine_fault_that_stays_is_ungraded_and_never_zero(
    pool: SandboxPool, operation: str, fault: Callable[[], Exception]
) -> None:
    verdict, _ = await faulty(pool, operation, *(fault() for _ in range(9)))
    assert (verdict.status, verdict.fault, verdict.reward) == ("ungraded", "environment", None)
    assert str(fault()).split(":")[0][-10:] in verdict.reason


async def test_a_missing_image_is_the_environments_fault(pool: SandboxPool) -> None:
    task = values_task([Case((1,), expected=1)], image="missing")
    verdict = await grade(pool, task, RIGHT)
    assert (verdict.status, verdict.fault) == ("ungraded", "environment")
    assert "missing" in verdict.reason


async def test_a_box_lost_again_without_evidence_is_the_models_zero(pool: SandboxPool) -> None:
    verdict, broken = await faulty(pool, "run", box_lost(), box_lost())
    assert (verdict.status, verdict.fault, verdict.reward) == ("graded", "model", 0.0)
    assert broken.acquired == 2
    verdict, _ = await faulty(pool, "run", box_lost())
    assert (verdict.status, verdict.reward) == ("graded", 1.0)


async def test_host_evidence_in_between_gives_the_box_its_second_chance(pool: SandboxPool) -> None:
    verdict, _ = await faulty(pool, "run", box_lost(), host_lost())
    assert (verdict.status, verdict.reward) == ("graded", 1.0)
    verdict, _ = await faulty(pool, "run", box_lost(), host_lost(), box_lost())
    assert (verdict.fault, verdict.reward) == ("model", 0.0)
    verdict, _ = await faulty(pool, "run", host_lost(), box_lost(), host_lost())
    assert (verdict.fault, verdict.reward) == ("environment", None)


FAKED = [
    "import sys\nsys.stderr.write('Cannot connect to the Docker daemon')\nsys.exit(125)\n",
    "raise OSError(28, 'No space left on device')\n",
    "raise MemoryError\n",
    "class SandboxLost(Exception): pass\nraise SandboxLost('host lost')\n",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "import os, signal\nos.kill(-1, signal.SIGKILL)\n",
    "import os\nwhile True: os.fork()\n",
]


@pytest.mark.parametrize("answer", FAKED)
async def test_a_faked_breakdown_is_graded_like_any_wrong_answer(
    pool: SandboxPool, answer: str
) -> None:
    verdict = await grade(pool, values_task([Case((1,), expected=1)], timeout_s=2.0), answer)
    assert (verdict.status, verdict.reward) == ("graded", 0.0)


BROKEN_CASES = [b"", b"{}", b"[]", b"[{}]", b'[{"args": [["x", 1]], "expected": 1}]', b"\xff"]


@pytest.mark.parametrize("cases", BROKEN_CASES)
async def test_a_broken_cases_file_is_the_tasks_fault(pool: SandboxPool, cases: bytes) -> None:
    task = Task(TASK.spec, tests={"cases.json": cases})
    verdict = await grade(pool, task, RIGHT)
    assert (verdict.status, verdict.fault, verdict.reward) == ("ungraded", "task", None)
    assert "cases.json" in verdict.reason


async def test_what_cannot_be_graded_is_the_tasks_fault(pool: SandboxPool) -> None:
    visible = ValuesCheck(name="v", file="a", function="f", cases="c.json", visible=True)
    for task in (
        task_of((), {}),
        task_of((visible,), {"c.json": dump_cases([Case(expected=1)])}),
        task_of((visible.model_copy(update={"visible": False}),), {}),
        values_task([Case((1,), expected_source="1/0")]),
    ):
        verdict = await grade(pool, task, RIGHT)
        assert (verdict.status, verdict.fault) == ("ungraded", "task"), verdict.reason


async def test_a_grader_layer_that_is_not_there_is_the_environments_fault(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trialyard.graders.values.COMMAND", ("/bin/false",))
    assert (await grade(pool, TASK, RIGHT)).fault == "environment"
    monkeypatch.setattr("trialyard.graders.pytest_suite.RUNNER", "/missing.py")
    suite = suite_task({"test_a.py": "def test_a(): pass\n"})
    assert (await grade(pool, suite, RIGHT)).fault == "environment"


async def test_case_37_an_infrastructure_error_is_no_reward_zero(pool: SandboxPool) -> None:
    """The samples of the case, each with its cause put into the grading of one answer."""
    groups = json.loads(
        (
            Path(__file__).parents[1]
            / "cases"
            / "37_infra_error_is_not_reward_zero"
            / "groups.json"
        ).read_text()
    )
    causes: dict[str, tuple[str, Callable[[], Exception]]] = {
        "sandbox_lost": ("run", host_lost),
        "grader_crash": ("run", lambda: SandboxError("the grader crashed")),
        "http_503": ("acquire", lambda: ResourceExhausted("503")),
        "image_pull": ("acquire", lambda: NotFoundError("image cannot be pulled")),
    }
    rewards = []
    for sample in (sample for group in groups for sample in group["samples"]):
        operation, fault = causes.get(sample.get("cause", ""), ("none", host_lost))
        broken = FaultyPool(pool, operation, [fault() for _ in range(9)])
        answer = RIGHT if sample["reward"] == 1 else "def f(x): return 'wrong'\n"
        verdict = await FreshBoxGrader(cast(SandboxPool, broken), SystemClock()).grade(
            TASK, submission_of(answer)
        )
        assert verdict.reward == sample["reward"], sample
        rewards.append(verdict.reward)
    valid = [reward for reward in rewards if reward is not None]
    assert (sum(valid), len(valid), len(rewards)) == (3, 9, 16)


async def test_boxes_are_given_back_whatever_happened(pool: SandboxPool) -> None:
    await faulty(pool, "run", *(host_lost() for _ in range(9)))
    await grade(pool, TASK, "import os\nwhile True: os.fork()\n")
    assert pool.counters()["live"] == 0
