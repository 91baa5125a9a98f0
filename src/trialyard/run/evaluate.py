"""Held-out evaluation: every task greedily and sampled, solve rates with intervals."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trialyard.core.ids import derive_seed
from trialyard.core.policy import Sampling
from trialyard.core.task import Task
from trialyard.core.trajectory import Trajectory
from trialyard.rollout.rollout import Roller, RolloutRequest
from trialyard.run.statistics import wilson_interval

Keep = Callable[[Sequence[Trajectory]], Awaitable[None]]
"""Stores finished trajectories."""

CONCURRENCY = 256


@dataclass(frozen=True, slots=True)
class SolveRates:
    """Held-out solve rates; ungraded rollouts are left out of `n` and counted apart."""

    greedy: float
    sampled: float
    greedy_interval: tuple[float, float]
    sampled_interval: tuple[float, float]
    n: int
    """Tasks with a greedy verdict."""
    n_sampled: int
    """Sampled rollouts with a verdict."""
    ungraded: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def evaluate(
    roller: Roller,
    tasks: Sequence[Task],
    *,
    run: str,
    label: str,
    seed: int,
    samples: int,
    keep: Keep,
) -> SolveRates:
    """Roll out every task once greedily and `samples` times at temperature 1."""
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(task: Task, mode: str, member: int) -> Trajectory:
        sampling = Sampling(temperature=0.0 if mode == "greedy" else 1.0)
        group = f"evaluation/{label}/{mode}/{task.id}"
        request = RolloutRequest(
            run, group, member, task, sampling, derive_seed(seed, label, mode, task.id, member)
        )
        async with slots:
            return await roller.run(request)

    greedy, sampled = await asyncio.gather(
        asyncio.gather(*(one(task, "greedy", 0) for task in tasks)),
        asyncio.gather(*(one(task, "sampled", i) for task in tasks for i in range(samples))),
    )
    await keep([*greedy, *sampled])
    return solve_rates(greedy, sampled)


def solve_rates(greedy: Sequence[Trajectory], sampled: Sequence[Trajectory]) -> SolveRates:
    """Share of solved among the graded, with Wilson intervals."""
    (g_solved, g_n), (s_solved, s_n) = _count(greedy), _count(sampled)
    return SolveRates(
        greedy=g_solved / max(1, g_n),
        sampled=s_solved / max(1, s_n),
        greedy_interval=wilson_interval(g_solved, g_n),
        sampled_interval=wilson_interval(s_solved, s_n),
        n=g_n,
        n_sampled=s_n,
        ungraded=len(greedy) + len(sampled) - g_n - s_n,
    )


def _count(trajectories: Sequence[Trajectory]) -> tuple[int, int]:
    graded = [t for t in trajectories if t.verdict.status == "graded"]
    return sum(t.verdict.passed for t in graded), len(graded)
