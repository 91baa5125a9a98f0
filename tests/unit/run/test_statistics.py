"""Intervals and histograms."""

import pytest

from trialyard.run.statistics import histogram, mean, wilson_interval


def test_wilson_interval_against_published_values() -> None:
    # Newcombe (1998), table I: 81/263 and 15/148
    low, high = wilson_interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    low, high = wilson_interval(15, 148)
    assert (round(low, 4), round(high, 4)) == (0.0624, 0.1605)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (0, 0)])
def test_wilson_interval_stays_within_zero_and_one(k: int, n: int) -> None:
    low, high = wilson_interval(k, n)
    assert 0.0 <= low <= high <= 1.0


def test_mean_of_nothing_is_zero_and_histograms_are_ordered() -> None:
    assert mean([]) == 0.0
    assert histogram([2, 0, 2, 10]) == {"0": 1, "2": 2, "10": 1}
