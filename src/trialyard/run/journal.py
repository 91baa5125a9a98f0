"""The step journal: what one optimiser step consumed and did, as events for people."""

import os

from trialyard.core.trajectory import Trajectory
from trialyard.run.collector import Batch
from trialyard.run.loop import Work
from trialyard.run.statistics import histogram, mean
from trialyard.run.yard import Yard


class StepJournal:
    """Turns steps into ``step`` and ``fault`` events, with idle shares since the last step."""

    def __init__(self, yard: Yard, *, cores: int | None = None) -> None:
        self._yard = yard
        self._last_s = yard.clock.monotonic_s()
        self._sampler_busy_s = yard.policy.busy_s
        self._cores = cores or usable_cores()

    def record(self, step: int, version: int, batch: Batch, work: Work) -> None:
        """Emit one ``step`` event and a ``fault`` event for each faulty member."""
        members = [t for group in batch.groups for t in group.trajectories]
        graded = [t for t in members if t.reward is not None]
        learner_version = version - 1
        staleness = [
            learner_version - t.oldest_version for t in graded if t.oldest_version is not None
        ]
        now_s, busy_s = self._yard.clock.monotonic_s(), self._yard.policy.busy_s
        wall_s = max(1e-9, now_s - self._last_s)
        learner_s = work.update.duration_s if work.update else 0.0
        boxes_s = sum(turn.sandbox_s for t in members for turn in t.turns)
        self._yard.events.emit(
            "step",
            step=step,
            version=version,
            reward_mean=mean([t.reward or 0.0 for t in graded]),
            solve_rate=mean([float(t.verdict.passed) for t in graded]),
            loss=work.update.loss if work.update else 0.0,
            staleness=histogram(staleness),
            staleness_mean=mean([float(s) for s in staleness]),
            staleness_max=max(staleness, default=0),
            num_trajectories=len(members),
            num_ungraded=len(members) - len(graded),
            num_tokens=sum(t.num_output_tokens for t in members),
            turns_mean=mean([float(len(t.turns)) for t in members]),
            dropped_groups=len(batch.dropped),
            groups_without_spread=work.credit.groups_without_spread,
            rollouts_per_s=len(members) / wall_s,
            sampler_idle=_share(1 - (busy_s - self._sampler_busy_s) / wall_s),
            learner_idle=_share(1 - learner_s / wall_s),
            sandbox_idle=_share(1 - boxes_s / (wall_s * self._cores)),
            wall_s=wall_s,
            metrics=work.update.metrics if work.update else {},
        )
        for member in members:
            self._faults(member)
        self._last_s, self._sampler_busy_s = now_s, busy_s

    def _faults(self, member: Trajectory) -> None:
        for attempt, message in enumerate(member.faults):
            where, _, text = message.partition(": ")
            self._yard.events.emit(
                "fault",
                where=where,
                fault="environment" if member.verdict.fault != "model" else "model",
                message=text[:500],
                task_id=member.task_id,
                attempt=attempt,
                trajectory=member.id,
            )


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
