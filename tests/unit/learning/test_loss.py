"""Losses against slow references in double precision, and what they must survive."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from trialyard.core.learner import TrainingSequence
from trialyard.learning.advantage import group_advantages
from trialyard.learning.loss import (
    effective_sample_share,
    entropy,
    kl_k3,
    nll_loss,
    ppo_clip,
    token_logprobs,
    token_mean,
    truncated_importance,
)
from trialyard.learning.pack import pack

CASE_40 = Path("tests/cases/40_unscored_token_and_empty_response")


def example(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    behaviour = -torch.rand(40, generator=generator) * 3
    logprobs = behaviour + 0.4 * torch.randn(40, generator=generator)
    return logprobs.clamp(max=0.0), behaviour, torch.randn(40, generator=generator)


def slow_ppo(new: float, old: float, advantage: float) -> float:
    ratio = math.exp(new - old)
    clipped = min(max(ratio, 1 - 0.2), 1 + 0.28)
    return -min(ratio * advantage, clipped * advantage)


@pytest.mark.parametrize("seed", range(3))
def test_ppo_clip_equals_a_slow_reference(seed: int) -> None:
    new, old, advantages = example(seed)
    terms = ppo_clip(new, old, advantages, clip_low=0.2, clip_high=0.28)
    rows = zip(new.tolist(), old.tolist(), advantages.tolist(), strict=True)
    expected = [slow_ppo(*row) for row in rows]
    assert terms.loss_N.tolist() == pytest.approx(expected, abs=1e-5)
    assert terms.clipped_N.any()


@pytest.mark.parametrize("seed", range(3))
def test_ppo_clip_has_no_gradient_exactly_where_it_says_clipped(seed: int) -> None:
    new, old, advantages = example(seed)
    new = new.clone().requires_grad_()
    terms = ppo_clip(new, old, advantages, clip_low=0.2, clip_high=0.28)
    (gradient,) = torch.autograd.grad(terms.loss_N.sum(), new)
    assert torch.equal(gradient == 0, terms.clipped_N)


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    _, old, advantages = example(5)
    new = old.clone().requires_grad_()
    terms = ppo_clip(new, old, advantages, clip_low=0.2, clip_high=0.28)
    (gradient,) = torch.autograd.grad(terms.loss_N.sum(), new)
    assert torch.allclose(gradient, -advantages)


def test_truncated_importance_equals_a_slow_reference() -> None:
    new, old, advantages = example(1)
    new = new.clone().requires_grad_()
    terms = truncated_importance(new, old, advantages, cap=1.2)
    (gradient,) = torch.autograd.grad(terms.loss_N.sum(), new)
    rows = zip(new.tolist(), old.tolist(), advantages.tolist(), strict=True)
    weights = [min(math.exp(n - o), 1.2) for n, o, _ in rows]
    expected = [-w * a for w, a in zip(weights, advantages.tolist(), strict=True)]
    assert gradient.tolist() == pytest.approx(expected, abs=1e-5)
    loss = [e * n for e, n in zip(expected, new.tolist(), strict=True)]
    assert terms.loss_N.tolist() == pytest.approx(loss, abs=1e-5)


def test_logprobs_entropy_and_kl_equal_slow_references() -> None:
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)) * 3
    targets = torch.tensor([0, 8, 3, 3, 5, 1])
    got = token_logprobs(logits, targets, temperature=0.7)
    spread = entropy(logits, temperature=0.7)
    for row, target in enumerate(targets.tolist()):
        weights = [math.exp(x / 0.7) for x in logits[row].double().tolist()]
        shares = [w / sum(weights) for w in weights]
        assert float(got[row]) == pytest.approx(math.log(shares[target]), abs=1e-4)
        assert float(spread[row]) == pytest.approx(-sum(p * math.log(p) for p in shares), abs=1e-4)
    new, old, _ = example(2)
    pairs = zip(new.tolist(), old.tolist(), strict=True)
    expected = [math.exp(o - n) - 1 - (o - n) for n, o in pairs]
    assert kl_k3(new, old).tolist() == pytest.approx(expected, abs=1e-5)
    assert float(nll_loss(got, denominator=6)) == pytest.approx(-float(got.mean()))


def test_effective_sample_share() -> None:
    assert effective_sample_share(torch.ones(7)) == pytest.approx(1.0)
    assert effective_sample_share(torch.tensor([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)


def number(value: Any) -> float:
    return math.nan if value is None else float(value)


def test_case_40_unscored_tokens_count_as_on_policy_and_nothing_leaks() -> None:
    batch = json.loads((CASE_40 / "batch.json").read_text())
    expected = json.loads((CASE_40 / "expected.json").read_text())
    advantages: dict[str, float | None] = {}
    for name in ("g", "h"):
        members = [row for row in batch if row["group"] == name]
        values = group_advantages([row["reward"] for row in members])
        assert values is not None
        advantages |= {row["id"]: a for row, a in zip(members, values, strict=True)}
    for name, value in expected["adv"].items():
        assert advantages[name] == pytest.approx(value, abs=1e-6)
    kept = [row for row in batch if any(row["mask"])]
    packed = pack([
        TrainingSequence(
            (0, *row["ids"]),
            (False, *map(bool, row["mask"])),
            (0.0, *map(number, row["old_logprobs"])),
            (0.0, *(number(advantages[row["id"]]) for _ in row["ids"])),
        )
        for row in kept
    ])  # fmt: skip
    new_BT = torch.zeros(packed.mask_BT.shape)
    for index, row in enumerate(kept):
        new_BT[index, 1 : len(row["ids"]) + 1] = torch.tensor(row["new_logprobs"])
    new_BT.requires_grad_()
    terms = ppo_clip(
        new_BT[packed.mask_BT],
        packed.behaviour_BT[packed.mask_BT],
        packed.advantages_BT[packed.mask_BT],
        clip_low=0.2,
        clip_high=0.28,
    )
    ratios = iter(terms.ratio_N.tolist())
    for row in kept:
        wanted = expected["ratios"][row["id"]]
        assert [next(ratios) for _ in wanted] == pytest.approx(wanted, abs=1e-6)
    assert packed.num_tokens == 7
    loss = token_mean(terms.loss_N, denominator=packed.num_tokens)
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, new_BT)
    assert gradient.isfinite().all()
    assert (gradient[~packed.mask_BT] == 0).all()
    padding_BT = torch.arange(new_BT.shape[1]) >= packed.lengths_B[:, None]
    assert padding_BT.any()
    assert (packed.ids_BT[padding_BT] == 0).all()
    assert (packed.behaviour_BT[~packed.mask_BT] == 0).all()
    assert (packed.advantages_BT[~packed.mask_BT] == 0).all()
