"""From a trajectory to training sequences: each sampled token stands in exactly one."""

from dataclasses import replace

from tests.records import trajectory_of
from trialyard.core.learner import sequences_of


def test_context_is_masked_and_sampled_tokens_carry_the_advantage() -> None:
    trajectory = trajectory_of("t", version=3)
    two_turns = replace(trajectory, turns=trajectory.turns * 2)
    [sequence] = sequences_of(two_turns, 0.5)
    assert sequence.token_ids_T == (1, 2, 3, 4, 1, 2, 3, 4)
    assert sequence.mask_T == (False, False, True, True) * 2
    assert sequence.logprobs_T == (0.0, 0.0, -0.5, -0.25) * 2
    assert sequence.advantages_T == (0.0, 0.0, 0.5, 0.5) * 2
    assert sequence.oldest_version == 3


def test_a_branch_is_a_sequence_of_its_own() -> None:
    trajectory = trajectory_of("t")
    branch = replace(trajectory.turns[0], branch=True)
    sequences = sequences_of(replace(trajectory, turns=(trajectory.turns[0], branch)), 1.0)
    assert [s.token_ids_T for s in sequences] == [(1, 2, 3, 4), (1, 2, 3, 4)]
