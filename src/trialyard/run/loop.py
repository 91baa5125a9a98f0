"""The loop of reinforcement learning: take a batch, step, commit, publish, record.

One loop serves synchronous and asynchronous training: rollouts go on in the collector
while the learner steps, and how far they may run ahead is `max_staleness` (0 is
synchronous). What was consumed commits together with the checkpoint of its step, and
only then may the new weights sample anything.
"""

from dataclasses import dataclass
from typing import Protocol

from trialyard.core.learner import Learner, StepReport
from trialyard.core.policy import TrainablePolicy
from trialyard.run.collector import Batch, Collector
from trialyard.run.credit import Credit, CreditRule


class Journal(Protocol):
    """Where the loop makes a step durable and says what happened."""

    async def commit(self, step: int, version: int, batch: Batch, weights: bytes) -> None:
        """Checkpoint of `step` with all it consumed and dropped; weights published."""

    async def report(self, step: int, version: int, batch: Batch, work: "Work") -> None:
        """Record the step for people: events, progress, evaluation on schedule."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one step did. `update` is None when no member had anything to teach."""

    credit: Credit
    update: StepReport | None


async def rl_loop(
    collector: Collector,
    learner: Learner,
    policy: TrainablePolicy,
    journal: Journal,
    credit_rule: CreditRule,
    *,
    steps: range,
) -> None:
    """Run `steps` (numbers of optimiser steps, ascending). Raises what a part raises."""
    version = policy.version
    try:
        for step in steps:
            batch = await collector.batch(version)
            credit = credit_rule(batch.groups)
            update = await learner.rl_step(credit.sequences) if credit.sequences else None
            weights = await learner.weights()
            version += 1
            await journal.commit(step, version, batch, weights)
            await policy.load(weights, version)
            collector.step_done()
            await journal.report(step, version, batch, Work(credit, update))
    finally:
        await collector.close()
