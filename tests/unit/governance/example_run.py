"""A run directory as a training run leaves it, made up but plausible, for report tests."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trialyard.core import grader
from trialyard.core.grader import CheckResult, TamperFinding, Verdict
from trialyard.core.policy import VersionSpan
from trialyard.core.trajectory import CommandRecord, StopReason, Trajectory, Turn
from trialyard.testing.storage import MemoryTrajectories

START_S = 1_796_000_000.0
HELD_OUT = {
    "before_sft": (0.0, 0.004),
    "after_sft": (0.372, 0.309),
    "after_rl": (0.842, 0.811),
}


def write_run(directory: Path, *, steps: int = 120, finished: bool = True) -> None:
    """Events, settings and, when finished, the summary of a run."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.resolved.toml").write_text(
        'name = "quickstart"\nseed = 1\n\n[rl]\nsteps = 120\nmax_staleness = 2\n'
    )
    events = _events(steps, finished)
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (directory / "events.jsonl").write_text(lines)
    if finished:
        (directory / "summary.json").write_text(json.dumps(_summary(steps)))


def rates(label: str) -> dict[str, Any]:
    greedy, sampled = HELD_OUT[label]
    return {
        "greedy": greedy,
        "sampled": sampled,
        "greedy_interval": [max(0.0, greedy - 0.05), greedy + 0.05],
        "sampled_interval": [max(0.0, sampled - 0.02), sampled + 0.02],
        "n": 300,
    }


def _summary(steps: int) -> dict[str, Any]:
    return {
        "name": "quickstart",
        "seed": 1,
        "held_out": {label: rates(label) for label in HELD_OUT},
        "wall_s": {
            "evaluation before_sft": 9.1,
            "sft": 61.0,
            "evaluation after_sft": 10.4,
            "rl": 342.0,
            "evaluation after_rl": 11.2,
        },
        "rollouts": steps * 128,
        "steps": steps,
        "tokens": steps * 10_400,
        "staleness": {"0": steps * 9, "1": steps * 71, "2": steps * 48},
        "faults": {"environment": 3, "model": 1},
        "idle": {"sampler": 0.18, "learner": 0.44, "sandboxes": 0.31},
    }


def _events(steps: int, finished: bool) -> list[dict[str, Any]]:
    rng = random.Random(4)
    now_s = START_S
    events: list[dict[str, Any]] = []

    def emit(kind: str, after_s: float = 0.0, **fields: Any) -> None:
        nonlocal now_s
        now_s += after_s
        events.append({"kind": kind, "time_s": now_s, **fields})

    emit("phase", name="evaluation before_sft", state="start")
    emit("evaluation", 9.0, label="before_sft", step=0, wall_s=9.0, **rates("before_sft"))
    emit("phase", name="evaluation before_sft", state="end")
    emit("phase", name="sft", state="start")
    for step in range(1, 201):
        emit("sft_step", 0.3, step=step, loss=0.4 + 2.8 * 0.97**step + rng.uniform(-0.05, 0.05))
    emit("phase", name="sft", state="end")
    emit("evaluation", 10.0, label="after_sft", step=0, wall_s=10.0, **rates("after_sft"))
    emit("phase", name="rl", state="start")
    for step in range(1, steps + 1):
        emit("step", 2.85, **_step(step, rng))
        if step in (17, 60, 61, 90):
            emit("fault", **_fault(step))
        if step in (40, 80):
            share = 0.31 + 0.5 * (1 - 0.97**step)
            around = [share - 0.02, share + 0.02]
            emit(
                "evaluation",
                6.0,
                label=f"step {step}",
                step=step,
                greedy=share + 0.04,
                sampled=share,
                greedy_interval=[share - 0.01, share + 0.09],
                sampled_interval=around,
                n=300,
            )
    if finished:
        emit("phase", name="rl", state="end")
        emit("evaluation", 11.0, label="after_rl", step=steps, wall_s=11.0, **rates("after_rl"))
        emit("summary", **_summary(steps))
    return events


def _step(step: int, rng: random.Random) -> dict[str, Any]:
    solve = 0.3 + 0.52 * (1 - 0.965**step) + rng.uniform(-0.06, 0.06)
    return {
        "step": step,
        "version": step + 1,
        "reward_mean": min(1.0, solve + 0.07),
        "solve_rate": solve,
        "loss": 0.02 * rng.gauss(0, 1) - 0.01,
        "staleness": {"0": 9, "1": 71, "2": 48},
        "staleness_mean": 1.3 + rng.uniform(-0.2, 0.2),
        "staleness_max": 2,
        "num_trajectories": 128,
        "num_tokens": int(10_400 + rng.uniform(-900, 900)),
        "dropped_groups": 0,
        "rollouts_per_s": 45 + rng.uniform(-6, 6),
        "sampler_idle": 0.18 + rng.uniform(-0.08, 0.08),
        "learner_idle": 0.44 + rng.uniform(-0.08, 0.08),
        "sandbox_idle": 0.31 + rng.uniform(-0.1, 0.1),
        "wall_s": 2.85,
        "metrics": {},
    }


def _fault(step: int) -> dict[str, Any]:
    return {
        "where": "sandbox" if step != 90 else "policy",
        "fault": "environment" if step != 90 else "model",
        "message": "box box-4b1f09c2d1aa was killed from outside (signal 9)",
        "task_id": f"train-{step:06d}",
        "attempt": 0,
    }


def turn(output: str, observation: str, context: str, version: int = 121) -> Turn:
    count = len(output.split())
    return Turn(
        context=context,
        context_ids=tuple(range(30)),
        output=output,
        output_ids=tuple(range(count)),
        logprobs=(-0.1,) * count,
        versions=(VersionSpan(version, count),),
        finish="stop",
        observation=observation,
        policy_s=0.031,
        sandbox_s=0.0042,
    )


INSTRUCTION = "keep the even items , then add 3 to each , then give the sum of all items"
MENDED = "passed 1 of 4; f([4, 7, -2]) got 11 want 8"
ALL_PASSED = "all visible checks passed"


def verdict(passed: int, of: int = 8) -> Verdict:
    tests = tuple(
        grader.TestResult(
            id=f"hidden[{n}]",
            status="passed" if n < passed else "failed",
            duration_s=0.0011,
            message="" if n < passed else "f([5, -1, 2]): got 9, want 5",
        )
        for n in range(of)
    )
    return Verdict(
        status="graded",
        fault="none" if passed == of else "model",
        trust="separated",
        reward=passed / of,
        passed=passed == of,
        checks=(
            CheckResult(
                name="hidden",
                kind="values",
                weight=1.0,
                score=passed / of,
                passed=passed == of,
                evidence=f"{passed} of {of} cases passed",
            ),
        ),
        tests=tests,
    )


def example_trajectories() -> list[Trajectory]:
    """One corrected in the second turn, one solved at once, one never, and a shell session."""
    first = Trajectory(
        id="quickstart/evaluation/after_rl/corrected",
        run="quickstart",
        group="evaluation/after_rl/sampled/test-000017",
        member=0,
        attempt=0,
        task_id="test-000017",
        task_hash="h" * 64,
        image_digest="d" * 64,
        seed=3,
        turns=(
            turn("sum(x for x in v if x % 2 == 0) + 3", MENDED, INSTRUCTION),
            turn("sum(x + 3 for x in v if x % 2 == 0)", ALL_PASSED, MENDED),
        ),
        stop=StopReason.SOLVED,
        verdict=verdict(8),
        started_s=START_S,
        wall_s=0.41,
    )
    solved = replace(
        first,
        id="quickstart/solved",
        task_id="test-000042",
        turns=(turn("max(x * x for x in v)", ALL_PASSED, "square each item , give the largest"),),
    )
    failed = replace(
        first,
        id="quickstart/failed",
        task_id="test-000103",
        turns=tuple(
            turn("len(v)", "passed 0 of 4; f([1, 1, 2]) got 3 want 2", "count the distinct items")
            for _ in range(3)
        ),
        stop=StopReason.TURNS,
        verdict=verdict(2),
        attempt=1,
        faults=("sandbox: box vanished",),
    )
    return [first, solved, failed, _shell_session(first)]


def _shell_session(first: Trajectory) -> Trajectory:
    test = ("python", "-m", "pytest", "-q")

    def run(exit_code: int, stdout: bytes) -> CommandRecord:
        return CommandRecord(test, "exited", exit_code, 0.31, stdout, b"")

    turns = (
        replace(
            turn(
                "```bash\npython -m pytest -q\n```", "1 failed, 2 passed", "Mend the date parser."
            ),
            commands=(run(1, b"\x1b[31mE   ValueError: bad month\x1b[0m\n1 failed, 2 passed\n"),),
        ),
        replace(
            turn("```bash\nsed -i s/%m/%d/ dates.py\n```", "", "1 failed, 2 passed"),
            commands=(CommandRecord(("sed",), "exited", 0, 0.01, b"", b""),),
        ),
        replace(
            turn("```bash\npython -m pytest -q\n```\n```submit\n```", "3 passed", ""),
            commands=(run(0, b"3 passed\n"),),
        ),
    )
    return replace(first, id="quickstart/shell", task_id="mend-the-parser", turns=turns)


HOSTILE = '</pre><script>alert(1)</script><img src=x onerror="alert(2)">&amp;\x00\x1b[2J\u202etxt'


def hostile_trajectory() -> Trajectory:
    """Markup, control characters and direction marks in every text field."""
    (first, *_) = example_trajectories()
    bad = replace(
        turn(HOSTILE, HOSTILE, HOSTILE),
        commands=(CommandRecord((HOSTILE,), HOSTILE, 1, 0.1, HOSTILE.encode(), b"\xff<b>"),),
        finish=HOSTILE,
    )
    judged = verdict(1).model_copy(
        update={
            "reason": HOSTILE,
            "tests": (grader.TestResult(id=HOSTILE, status="failed", message=HOSTILE),),
            "checks": (
                CheckResult(
                    name=HOSTILE, kind="values", weight=1, score=0, passed=False, evidence=HOSTILE
                ),
            ),
            "tampering": (TamperFinding(kind=HOSTILE, path=HOSTILE, evidence=HOSTILE),),
        }
    )
    return replace(first, id=HOSTILE, group=HOSTILE, task_id=HOSTILE, turns=(bad,), verdict=judged)


def store_of(records: Sequence[Trajectory]) -> MemoryTrajectories:
    """A store that holds these records."""
    store = MemoryTrajectories()
    store.append(records)
    return store
