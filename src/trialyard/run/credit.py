"""Credit: from groups of trajectories to the sequences that the learner sees.

Ungraded members leave the group's mean, deviation and size; groups that teach nothing
(no spread of rewards, fewer than two graded members) give no sequences and are counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trialyard.core.ids import derive_random
from trialyard.core.learner import TrainingSequence, sequences_of
from trialyard.core.trajectory import Group, Trajectory
from trialyard.learning.advantage import Scale, group_advantages

RewardRule = Callable[[Trajectory], float | None]


@dataclass(frozen=True, slots=True)
class Credit:
    """Sequences of one batch and why groups gave none."""

    sequences: list[TrainingSequence]
    groups_without_spread: int
    groups_too_small: int


CreditRule = Callable[[Sequence[Group]], Credit]


def verdict_reward(trajectory: Trajectory) -> float | None:
    """The reward that grading gave."""
    return trajectory.reward


def random_reward(seed: int) -> RewardRule:
    """A control: a coin for each graded member, so that nothing can be learnt from it."""

    def rule(trajectory: Trajectory) -> float | None:
        if trajectory.reward is None:
            return None
        return float(derive_random(seed, "random-reward", trajectory.id).random() < 0.5)

    return rule


def group_credit(reward_of: RewardRule, scale: Scale) -> CreditRule:
    """Group-relative credit over `reward_of`."""

    def rule(groups: Sequence[Group]) -> Credit:
        sequences: list[TrainingSequence] = []
        flat = small = 0
        for group in groups:
            rewards = [reward_of(member) for member in group.trajectories]
            advantages = group_advantages(rewards, scale=scale)
            if sum(reward is not None for reward in rewards) < 2:
                small += 1
            elif advantages is None:
                flat += 1
            else:
                for member, advantage in zip(group.trajectories, advantages, strict=True):
                    if advantage is not None:
                        sequences += sequences_of(member, advantage)
        return Credit(sequences, flat, small)

    return rule
