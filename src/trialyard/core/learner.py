"""Learners: turn a batch of records into one optimiser step."""

from dataclasses import dataclass, field
from typing import Protocol

from trialyard.core.trajectory import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One token sequence with what the loss needs, all of length T.

    `mask_T` is True where a token was sampled by the policy and counts;
    `logprobs_T` are the behaviour policy's (0.0 where the mask is False);
    `advantages_T` are per token.
    """

    token_ids_T: tuple[int, ...]
    mask_T: tuple[bool, ...]
    logprobs_T: tuple[float, ...]
    advantages_T: tuple[float, ...]
    oldest_version: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimiser step did."""

    step: int
    loss: float
    num_tokens: int
    duration_s: float
    metrics: dict[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """Owns the trainable weights and the optimiser. One call at a time."""

    async def sft_step(self, sequences: list[TrainingSequence]) -> StepReport:
        """One supervised step (log-likelihood of the masked tokens)."""

    async def rl_step(self, sequences: list[TrainingSequence]) -> StepReport:
        """One policy-gradient update. Raises `LearnerError` if a number is not sound."""

    async def weights(self) -> bytes:
        """Current weights as safetensors."""

    async def save(self) -> bytes:
        """Everything needed to continue: weights, optimiser, schedules, RNG."""

    async def restore(self, state: bytes) -> None:
        """Continue from `save`."""

    async def close(self) -> None:
        """Stop the learner. Idempotent."""


def sequences_of(trajectory: Trajectory, advantage: float) -> list[TrainingSequence]:
    """Token-exact sequences of a trajectory, one per branch, one advantage for all of them.

    Every sampled token stands in exactly one sequence, so each is trained once.
    """
    branches: list[list[Turn]] = []
    for turn in trajectory.turns:
        if turn.branch or not branches:
            branches.append([])
        branches[-1].append(turn)
    oldest = trajectory.oldest_version or 0
    return [_sequence(turns, advantage, oldest) for turns in branches]


def _sequence(turns: list[Turn], advantage: float, oldest_version: int) -> TrainingSequence:
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for turn in turns:
        ids += [*turn.context_ids, *turn.output_ids]
        mask += [False] * len(turn.context_ids) + [True] * len(turn.output_ids)
        logprobs += [*([0.0] * len(turn.context_ids)), *turn.logprobs]
    advantages = [advantage if sampled else 0.0 for sampled in mask]
    return TrainingSequence(
        tuple(ids), tuple(mask), tuple(logprobs), tuple(advantages), oldest_version
    )
