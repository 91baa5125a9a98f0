"""Packing: what is skipped, what is refused, what padding holds."""

import math
import random

import pytest
import torch

from trialyard.core.errors import LearnerError
from trialyard.core.learner import TrainingSequence
from trialyard.learning.pack import minibatches, pack, pack_by_length, select


def sequence(
    ids: list[int], mask: list[int], logprob: float = -0.5, advantage: float = 1.0
) -> TrainingSequence:
    return TrainingSequence(
        tuple(ids),
        tuple(bool(m) for m in mask),
        tuple(logprob * m for m in mask),
        tuple(advantage * m for m in mask),
    )


def test_sequences_that_teach_nothing_are_skipped_with_a_reason() -> None:
    good = sequence([1, 2, 3], [0, 0, 1])
    selection = select(
        [
            good,
            sequence([], []),
            sequence([1, 2], [0, 0]),
            sequence([1, 2], [1, 0]),
            sequence([1] * 9, [0, 1] + [0] * 7),
        ],
        vocabulary_size=5,
        max_positions=8,
    )
    assert selection.sequences == [good]
    assert selection.skipped == {"empty": 1, "no_counted_token": 2, "longer_than_context": 1}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (sequence([1, 5], [0, 1]), "vocabulary"),
        (sequence([1, -1], [0, 1]), "vocabulary"),
        (sequence([1, 2], [0, 1], advantage=math.nan), "advantage"),
        (sequence([1, 2], [0, 1], advantage=math.inf), "advantage"),
        (TrainingSequence((1, 2), (False, True), (0.0,), (0.0, 1.0)), "different lengths"),
    ],
)
def test_what_is_wrong_is_refused(wrong: TrainingSequence, message: str) -> None:
    with pytest.raises(LearnerError, match=f"sequence 1.*{message}"):
        select([sequence([1, 2], [0, 1]), wrong], vocabulary_size=5, max_positions=8)


def test_padding_holds_zero_and_predictions_stand_one_before() -> None:
    batch = pack([sequence([1, 2, 3, 4], [0, 1, 0, 1]), sequence([3, 2], [0, 1])])
    assert batch.ids_BT.tolist() == [[1, 2, 3, 4], [3, 2, 0, 0]]
    assert batch.lengths_B.tolist() == [4, 2]
    assert batch.mask_BT.tolist() == [[False, True, False, True], [False, True, False, False]]
    assert batch.behaviour_BT.tolist() == [[0, -0.5, 0, -0.5], [0, -0.5, 0, 0]]
    assert batch.advantages_BT.tolist() == [[0, 1, 0, 1], [0, 1, 0, 0]]
    assert batch.predicting().tolist() == [[True, False, True, False], [True, False, False, False]]
    assert batch.targets().tolist() == [2, 4, 2]
    assert batch.num_tokens == 3


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, math.inf, 0.7])
def test_an_impossible_logprob_is_none_at_a_counted_token(logprob: float) -> None:
    tokens = TrainingSequence((1, 2, 3), (False, True, False), (logprob,) * 3, (0.0, 1.0, 0.0))
    behaviour = pack([tokens]).behaviour_BT
    assert math.isnan(behaviour[0, 1])
    assert behaviour[0, [0, 2]].tolist() == [0, 0]


def test_a_first_token_that_is_masked_in_never_counts() -> None:
    assert pack([sequence([1, 2], [1, 1])]).num_tokens == 1


def test_batches_by_length_hold_every_row_within_the_budget() -> None:
    rng = random.Random(0)
    lengths = [rng.randint(2, 60) for _ in range(50)]
    sequences = [sequence([1] * n, [0] + [1] * (n - 1)) for n in lengths]
    batches = pack_by_length(sequences, max_tokens=200)
    assert sorted(n for b in batches for n in b.lengths_B.tolist()) == sorted(lengths)
    assert all(batch.ids_BT.numel() <= 200 for batch in batches)
    waste = 1 - sum(lengths) / sum(batch.ids_BT.numel() for batch in batches)
    assert waste < 0.15
    (alone,) = pack_by_length([sequence([1] * 300, [0, 1] * 150)], max_tokens=200)
    assert alone.ids_BT.shape == torch.Size([1, 300])


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (64, 1), (76, 1), (100, 2), (128, 2)])
def test_minibatches_are_equal_parts_of_all(count: int, parts: int) -> None:
    sequences = [sequence([1, n], [0, 1]) for n in range(count)]
    cut = minibatches(sequences, 64, random.Random(1).shuffle)
    assert len(cut) == parts
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
    assert sorted(s.token_ids_T for part in cut for s in part) == [(1, n) for n in range(count)]
    assert count == 1 or [s for part in cut for s in part] != sequences
