"""Sampling: the right distribution, its exact log-probabilities, repeatable."""

import math
import statistics

import pytest
import torch

from trialyard.policies.hf_sample import sample, scaled_logprobs, uniforms


def slow_distribution(logits: list[float], temperature: float, top_p: float) -> list[float]:
    """The same in plain Python: softmax, then the smallest likely set that reaches top-p."""
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    probabilities = [w / sum(weights) for w in weights]
    order = sorted(range(len(logits)), key=lambda i: -probabilities[i])
    kept: set[int] = set()
    mass = 0.0
    for index in order:
        if mass >= top_p:
            break
        kept.add(index)
        mass += probabilities[index]
    total = sum(probabilities[i] for i in kept)
    return [p / total if i in kept else 0.0 for i, p in enumerate(probabilities)]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9), (1.5, 0.5), (1, 0.01)])
def test_distribution_equals_a_slow_reference(temperature: float, top_p: float) -> None:
    logits = torch.randn(4, 12, generator=torch.Generator().manual_seed(1)) * 2
    got = scaled_logprobs(logits, torch.full((4,), temperature), torch.full((4,), top_p)).exp()
    for row, values in enumerate(logits.tolist()):
        expected = slow_distribution(values, temperature, top_p)
        assert got[row].tolist() == pytest.approx(expected, abs=1e-5)


def test_rows_keep_their_own_settings() -> None:
    logits = torch.randn(1, 9, generator=torch.Generator().manual_seed(2)).expand(3, 9)
    mixed = scaled_logprobs(logits, torch.tensor([1.0, 0.5, 2.0]), torch.tensor([1.0, 0.6, 1.0]))
    for row, (temperature, top_p) in enumerate([(1.0, 1.0), (0.5, 0.6), (2.0, 1.0)]):
        expected = slow_distribution(logits[row].tolist(), temperature, top_p)
        assert mixed[row].exp().tolist() == pytest.approx(expected, abs=1e-5)


def test_frequencies_follow_the_distribution_and_logprobs_are_those_of_the_draw() -> None:
    count = 20_000
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -5.0]]).expand(count, 5)
    temperatures, top_p = torch.full((count,), 0.8), torch.full((count,), 0.95)
    tokens, logprobs = sample(logits, temperatures, top_p, torch.tensor(uniforms(5, count)))
    expected = slow_distribution([2.0, 1.0, 0.0, -1.0, -5.0], 0.8, 0.95)
    shares = torch.bincount(tokens, minlength=5) / count
    assert shares.tolist() == pytest.approx(expected, abs=0.015)
    for token, logprob in zip(tokens[:50].tolist(), logprobs[:50].tolist(), strict=True):
        assert logprob == pytest.approx(math.log(expected[token]), abs=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-24])
def test_no_impossible_token_at_the_ends_of_the_unit_interval(uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 0.0, 1.0, -math.inf], [-math.inf, 3.0, -math.inf, -80.0]])
    tokens, logprobs = sample(logits, torch.ones(2), torch.ones(2), torch.full((2,), uniform))
    assert logprobs.isfinite().all()
    assert all(logits[row, token].isfinite() for row, token in enumerate(tokens.tolist()))


def test_greedy_takes_the_largest_and_is_certain() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 4.9]])
    tokens, logprobs = sample(logits, torch.zeros(2), torch.ones(2), torch.tensor([0.99, 0.99]))
    assert tokens.tolist() == [1, 0]
    assert logprobs.tolist() == [0.0, 0.0]


def test_uniforms_depend_on_the_seed_only() -> None:
    assert uniforms(7, 10) == uniforms(7, 20)[:10]
    assert uniforms(7, 10) != uniforms(8, 10)
    drawn = uniforms(2**63 - 1, 5000)
    assert all(0.0 <= u < 1.0 for u in drawn)
    assert statistics.fmean(drawn) == pytest.approx(0.5, abs=0.02)
