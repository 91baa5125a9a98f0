"""Rollouts: budgets end them, the record is token-exact, and the machine is never blamed
on the model."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from trialyard.core.errors import (
    ContextOverflow,
    PolicyError,
    ResourceExhausted,
    SandboxLost,
)
from trialyard.core.grader import Submission, Verdict
from trialyard.core.outcome import CaseOutcome
from trialyard.core.policy import Completion, Message, Sampling, VersionSpan
from trialyard.core.sandbox import Sandbox, SandboxPool
from trialyard.core.task import AgentSpec, Check, Task, TaskSpec, ValuesCheck
from trialyard.core.trajectory import StopReason, Trajectory
from trialyard.rollout.answer import AnswerTool, code_of
from trialyard.rollout.rollout import Roller, RolloutRequest

TASK = Task(
    TaskSpec(
        id="t/1",
        instruction="return one",
        agent=AgentSpec(
            answer_prefix="def f():\n    ", max_turns=3, turn_penalty=0.1, feedback="compact"
        ),
        checks=(
            ValuesCheck(name="v", file="solution.py", function="f", cases="v.json", visible=True),
            ValuesCheck(name="h", file="solution.py", function="f", cases="h.json"),
        ),
    )
)


class QuietClock:
    """Time that passes only when somebody sleeps."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return 1000.0 + self.now_s

    async def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


class Speaker:
    """A policy on tokens: says the given texts in turn; one token a character."""

    def __init__(self, *texts: str | Exception) -> None:
        self.texts = list(texts)
        self.prompts: list[list[Message]] = []
        self.sampling: list[Sampling] = []

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        self.prompts.append(list(messages))
        self.sampling.append(sampling)
        text = self.texts.pop(0)
        if isinstance(text, Exception):
            raise text
        text = text[: sampling.max_tokens]
        prompt: list[int] = []
        for message in messages:
            kept = message.token_ids
            prompt += kept if kept is not None else [*map(ord, f"<{message.content}>")]
        ids = tuple(map(ord, text))
        return Completion(
            text=text,
            finish="stop",
            prompt_ids=tuple(prompt),
            output_ids=ids,
            logprobs=(-1.0,) * len(ids),
            versions=(VersionSpan(4, len(ids)),),
        )

    async def close(self) -> None:
        pass


class Boxes:
    """A pool of boxes that only keep files; `losses` says which acquisitions fail, and how."""

    def __init__(self, losses: Mapping[int, Exception] | None = None) -> None:
        self.losses = dict(losses or {})
        self.acquired = 0
        self.live = 0

    @asynccontextmanager
    async def acquire(self, **_: Any) -> AsyncIterator[Sandbox]:
        number = self.acquired
        self.acquired += 1
        if isinstance(self.losses.get(number), ResourceExhausted):
            raise self.losses[number]
        self.live += 1
        try:
            yield Box(self.losses.get(number))  # type: ignore[misc]
        finally:
            self.live -= 1

    def fork(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def image_digest(self, image: str) -> str:
        return f"digest-of-{image}"

    async def close(self) -> None:
        pass

    def counters(self) -> dict[str, int]:
        return {"live": self.live}


class Box:
    workdir = "/work"
    id = "box"

    def __init__(self, loss: Exception | None) -> None:
        self.loss = loss
        self.files: dict[str, bytes] = {}

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        if self.loss:
            raise self.loss
        self.files[path] = data

    async def upload(self, files: Mapping[str, bytes], *, directory: str) -> None:
        self.files.update(files)


async def check_ones(task: Task, check: Check, sandbox: Sandbox) -> list[CaseOutcome]:
    passed = b"return 1" in sandbox.files["solution.py"]  # type: ignore[attr-defined]
    return [CaseOutcome(0, "passed" if passed else "failed", (), 1, got=1 if passed else 0)]


class Judge:
    """Grades by content; the first verdicts can be given."""

    def __init__(self, *first: Verdict) -> None:
        self.first = list(first)
        self.seen: list[Submission] = []

    async def grade(self, task: Task, submission: Submission, *, seed: int = 0) -> Verdict:
        self.seen.append(submission)
        if self.first:
            return self.first.pop(0)
        good = b"return 1" in (submission.files.get("solution.py") or b"")
        return Verdict(
            status="graded", fault="none", trust="separated", reward=float(good), passed=good
        )


async def roll(
    policy: Speaker, *, pool: Boxes | None = None, judge: Judge | None = None, task: Task = TASK
) -> Trajectory:
    pool = pool or Boxes()
    roller = Roller(
        policy=policy,
        pool=cast(SandboxPool, pool),
        grader=judge or Judge(),
        tool_for=lambda _: AnswerTool(check_ones),
        clock=QuietClock(),
    )
    trajectory = await roller.run(RolloutRequest("run", "g", 2, task, Sampling(), seed=5))
    assert pool.live == 0, "every box is given back"
    return trajectory


async def test_a_failed_try_gets_feedback_and_a_later_one_solves() -> None:
    policy = Speaker("return 0", "return 1")
    trajectory = await roll(policy)
    assert trajectory.stop is StopReason.SOLVED
    assert [turn.output for turn in trajectory.turns] == ["return 0", "return 1"]
    assert trajectory.turns[1].context.startswith("passed 0 of 1")
    assert trajectory.verdict.reward == 1.0
    assert trajectory.reward == pytest.approx(0.9), "one turn more costs the penalty"
    assert trajectory.id == "run/g/2"
    assert trajectory.image_digest == "digest-of-host"


async def test_the_record_is_the_tokens_that_the_policy_saw_and_sampled() -> None:
    policy = Speaker("return 0", "return 2", "return 3")
    trajectory = await roll(policy)
    sequence: list[int] = []
    for turn in trajectory.turns:
        assert not turn.branch
        sequence += [*turn.context_ids, *turn.output_ids]
    said = "<return one>return 0<passed 0 of 1; f() got 0 want 1>return 2"
    assert "".join(map(chr, sequence)).startswith(said)
    assert policy.prompts[2][1].token_ids == trajectory.turns[0].output_ids
    assert trajectory.oldest_version == 4


async def test_budgets_of_turns_and_tokens_end_the_rollout() -> None:
    assert (await roll(Speaker("a", "b", "c"))).stop is StopReason.TURNS
    spec = TASK.spec.model_copy(update={"agent": AgentSpec(max_turns=9, max_tokens=5)})
    policy = Speaker("abc", "defgh")
    trajectory = await roll(policy, task=Task(spec))
    assert trajectory.stop is StopReason.TOKENS
    assert trajectory.num_output_tokens == 5
    assert policy.sampling[1].max_tokens == 2


async def test_a_full_context_ends_the_rollout_and_what_is_there_is_graded() -> None:
    trajectory = await roll(Speaker("return 0", ContextOverflow("full")))
    assert trajectory.stop is StopReason.CONTEXT
    assert trajectory.reward == 0.0
    assert len(trajectory.turns) == 1


async def test_a_box_killed_from_outside_is_a_new_attempt_and_not_a_zero() -> None:
    pool = Boxes({0: SandboxLost("gone", host_evidence="killed by signal 9 from the host")})
    trajectory = await roll(Speaker("return 1", "return 1"), pool=pool)
    assert trajectory.reward == 1.0
    assert trajectory.attempt == 1
    [fault] = trajectory.faults
    assert "killed by signal 9" in fault


async def test_a_box_lost_twice_without_evidence_is_the_models_doing() -> None:
    pool = Boxes({0: SandboxLost("gone"), 1: SandboxLost("gone")})
    trajectory = await roll(Speaker("return 1", "return 1"), pool=pool)
    assert trajectory.verdict.fault == "model"
    assert trajectory.reward == 0.0
    assert trajectory.attempt == 1


@pytest.mark.parametrize(
    "loss",
    [SandboxLost("gone", host_evidence="host out of disk"), ResourceExhausted("no room")],
)
async def test_when_the_machine_stays_broken_the_rollout_is_ungraded(loss: Exception) -> None:
    pool = Boxes({0: loss, 1: loss, 2: loss})
    trajectory = await roll(Speaker(*["return 1"] * 3), pool=pool)
    assert trajectory.verdict.status == "ungraded"
    assert trajectory.verdict.fault == "environment"
    assert trajectory.reward is None
    assert len(trajectory.faults) == 3


async def test_grading_that_fails_for_the_machine_is_tried_again() -> None:
    broken = Verdict(status="ungraded", fault="environment", trust="separated", reason="disk full")
    trajectory = await roll(Speaker("return 1", "return 1"), judge=Judge(broken))
    assert trajectory.reward == 1.0
    assert trajectory.faults == ("grading: disk full",)


async def test_a_task_fault_is_not_tried_again() -> None:
    broken = Verdict(status="ungraded", fault="task", trust="separated", reason="no cases")
    judge = Judge(broken)
    trajectory = await roll(Speaker("return 1"), judge=judge)
    assert trajectory.verdict.fault == "task"
    assert len(judge.seen) == 1


async def test_a_policy_that_stays_silent_leaves_the_rollout_ungraded() -> None:
    trajectory = await roll(Speaker(*[PolicyError("server down")] * 3))
    assert trajectory.stop is StopReason.POLICY
    assert trajectory.verdict.status == "ungraded"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("return 1", "return 1"),
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\na\n```\n```py\nb\n```", "b\n"),
        ("```python\ncut off", "cut off"),
    ],
)
def test_code_is_taken_out_of_its_fence(text: str, code: str) -> None:
    assert code_of(text) == code
