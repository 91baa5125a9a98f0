"""From training sequences to padded tensors.

A sequence whose mask is empty teaches nothing and is skipped with a reason. Padding
holds 0 in every tensor. What training cannot make sense of (an advantage that is not
finite, a token outside the vocabulary) is refused before any weight changes; a sampled
token without a usable log-probability counts as sampled by the current policy
(ratio 1) and is counted.

Shapes: B rows, T positions. Position t holds token t; its log-probability is predicted
at t - 1, so the first token of a sequence never counts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trialyard.core.errors import LearnerError
from trialyard.core.learner import TrainingSequence


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded rows. `mask_BT` is True at tokens that count; elsewhere all values are 0."""

    ids_BT: Tensor
    lengths_B: Tensor
    mask_BT: Tensor
    behaviour_BT: Tensor
    """Log-probabilities of the policy that sampled; NaN where a counted token has none."""
    advantages_BT: Tensor

    @property
    def num_tokens(self) -> int:
        """Counted tokens: the denominator of a token mean."""
        return int(self.mask_BT.sum())

    def targets(self) -> Tensor:
        """Counted tokens [N] in row-major order."""
        return self.ids_BT[self.mask_BT]

    def predicting(self) -> Tensor:
        """Positions [B, T] whose logits predict the counted tokens."""
        shifted_BT = torch.zeros_like(self.mask_BT)
        shifted_BT[:, :-1] = self.mask_BT[:, 1:]
        return shifted_BT


@dataclass(frozen=True, slots=True)
class Selection:
    """Sequences that can be trained on, and why the others cannot (reason -> count)."""

    sequences: list[TrainingSequence]
    skipped: dict[str, int]


def select(
    sequences: Sequence[TrainingSequence], *, vocabulary_size: int, max_positions: int
) -> Selection:
    """Skip what teaches nothing; refuse what is wrong (`LearnerError`)."""
    kept: list[TrainingSequence] = []
    skipped: dict[str, int] = {}
    for index, sequence in enumerate(sequences):
        _check(sequence, index, vocabulary_size)
        reason = _skip_reason(sequence, max_positions)
        if reason is None:
            kept.append(sequence)
        else:
            skipped[reason] = skipped.get(reason, 0) + 1
    return Selection(kept, skipped)


def _skip_reason(sequence: TrainingSequence, max_positions: int) -> str | None:
    if not sequence.token_ids_T:
        return "empty"
    if not any(sequence.mask_T[1:]):
        return "no_counted_token"
    if len(sequence.token_ids_T) > max_positions:
        return "longer_than_context"
    return None


def _check(sequence: TrainingSequence, index: int, vocabulary_size: int) -> None:
    length = len(sequence.token_ids_T)
    columns = (sequence.mask_T, sequence.logprobs_T, sequence.advantages_T)
    if any(len(column) != length for column in columns):
        raise LearnerError(f"sequence {index}: its columns have different lengths; fix the caller")
    if length and not 0 <= min(sequence.token_ids_T) <= max(sequence.token_ids_T) < vocabulary_size:
        raise LearnerError(
            f"sequence {index}: a token is outside the vocabulary of {vocabulary_size};"
            " policy and learner must share one model directory"
        )
    for counted, advantage in zip(sequence.mask_T, sequence.advantages_T, strict=True):
        if counted and not math.isfinite(advantage):
            raise LearnerError(
                f"sequence {index}: advantage {advantage} is not finite; no weight was changed"
            )


def pack(sequences: Sequence[TrainingSequence]) -> Batch:
    """One padded batch of selected sequences."""
    rows, longest = len(sequences), max(len(sequence.token_ids_T) for sequence in sequences)
    ids_BT = torch.zeros(rows, longest, dtype=torch.long)
    mask_BT = torch.zeros(rows, longest, dtype=torch.bool)
    behaviour_BT = torch.zeros(rows, longest)
    advantages_BT = torch.zeros(rows, longest)
    for row, sequence in enumerate(sequences):
        length = len(sequence.token_ids_T)
        ids_BT[row, :length] = torch.tensor(sequence.token_ids_T)
        mask_BT[row, 1:length] = torch.tensor(sequence.mask_T[1:])
        behaviour_BT[row, :length] = torch.tensor(sequence.logprobs_T)
        advantages_BT[row, :length] = torch.tensor(sequence.advantages_T)
    unscored_BT = ~(behaviour_BT.isfinite() & (behaviour_BT <= 0.0))
    behaviour_BT = behaviour_BT.masked_fill(unscored_BT, float("nan"))
    lengths_B = torch.tensor([len(sequence.token_ids_T) for sequence in sequences])
    return Batch(
        ids_BT,
        lengths_B,
        mask_BT,
        torch.where(mask_BT, behaviour_BT, 0.0),
        torch.where(mask_BT, advantages_BT, 0.0),
    )


def pack_by_length(sequences: Sequence[TrainingSequence], *, max_tokens: int) -> list[Batch]:
    """Batches of similar lengths, each at most `max_tokens` padded tokens (at least one row)."""
    ordered = sorted(sequences, key=lambda sequence: len(sequence.token_ids_T))
    batches: list[Batch] = []
    while ordered:
        rows = max(1, max_tokens // len(ordered[-1].token_ids_T))
        batches.append(pack(ordered[-rows:]))
        ordered = ordered[:-rows]
    return batches


def minibatches(
    sequences: Sequence[TrainingSequence],
    size: int,
    shuffle: Callable[[list[TrainingSequence]], None],
) -> list[list[TrainingSequence]]:
    """Shuffled parts of equal size (within one), as near to `size` as their number allows.

    Equal parts, because a small remainder would be a noisy update at full learning rate.
    """
    ordered = list(sequences)
    shuffle(ordered)
    parts = max(1, round(len(ordered) / size))
    return [ordered[part::parts] for part in range(parts)]
