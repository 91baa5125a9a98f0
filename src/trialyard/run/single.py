"""Roll out a policy on one task, apart from any training run."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from trialyard.core.clock import SystemClock
from trialyard.core.errors import ConfigError, NotFoundError
from trialyard.core.ids import derive_seed, new_id
from trialyard.core.policy import Policy, Sampling
from trialyard.core.task import Task
from trialyard.core.trajectory import Trajectory
from trialyard.policies.openai import OpenAIPolicy
from trialyard.policies.scripted import ScriptedPolicy
from trialyard.rollout.reference import reference_outputs
from trialyard.rollout.rollout import Roller, RolloutRequest
from trialyard.run.wiring.boxes import open_grader, open_pool, tool_for
from trialyard.run.wiring.store import open_store
from trialyard.tasks.directory import load_task

POLICIES = ("reference", "noop", "random", "openai", "hf")
RANDOM_WORDS = ("return", "0", "None", "pass", "x", "(", ")", "\n", "def f():", "import os")


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy by name; `model` and `base_url` where the kind needs them."""

    kind: str
    model: str = ""
    base_url: str = ""


@asynccontextmanager
async def open_policy(choice: PolicyChoice, task: Task, seed: int) -> AsyncIterator[Policy]:
    """The policy of a choice. Raises `NotFoundError` or `ConfigError`."""
    policy: Policy
    if choice.kind == "reference":
        policy = ScriptedPolicy(reference_outputs(task))
    elif choice.kind == "noop":
        policy = ScriptedPolicy([""])
    elif choice.kind == "random":
        rng = random.Random(seed)
        policy = ScriptedPolicy([" ".join(rng.choices(RANDOM_WORDS, k=20)) for _ in range(100)])
    elif choice.kind == "openai":
        if not choice.base_url or not choice.model:
            raise ConfigError("--policy openai needs --base-url URL (up to /v1) and --model NAME")
        policy = OpenAIPolicy(choice.base_url, choice.model)
    elif choice.kind == "hf":
        if not choice.model:
            raise ConfigError("--policy hf needs --model DIRECTORY")
        from trialyard.policies.hf import HFPolicy

        policy = HFPolicy(Path(choice.model))
    else:
        raise NotFoundError(f"unknown policy {choice.kind!r}; known: {', '.join(POLICIES)}")
    try:
        yield policy
    finally:
        await policy.close()


async def roll_out(
    path: Path, choice: PolicyChoice, sampling: Sampling, *, samples: int, seed: int, out: Path
) -> list[Trajectory]:
    """`samples` graded trajectories of one task, stored below `out`."""
    task = load_task(path)
    async with (
        open_policy(choice, task, seed) as policy,
        open_pool(max_boxes=max(4, 2 * samples), warm=1) as pool,
    ):
        roller = Roller(
            policy=policy,
            pool=pool,
            grader=open_grader(pool),
            tool_for=tool_for,
            clock=SystemClock(),
        )
        run, group = new_id("rollout"), task.id
        trajectories = await asyncio.gather(
            *(
                roller.run(
                    RolloutRequest(run, group, i, task, sampling, derive_seed(seed, "member", i))
                )
                for i in range(samples)
            )
        )
    with open_store(out) as store:
        store.append(trajectories)
    return list(trajectories)
