"""Losses on tokens: pure functions of tensors, each with its paper and formula.

Invariants: masked positions are selected away, never multiplied away (0 * inf is NaN);
denominators are given by the caller, so that micro-batches of one step share theirs.

Shapes: N counted tokens, V vocabulary. Roles: ``behaviour`` (mu) sampled the tokens,
``logprobs`` are those of the policy being trained (pi).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """Policy loss per token and what a run should watch."""

    loss_N: Tensor
    ratio_N: Tensor
    clipped_N: Tensor
    """True where the clip removed the gradient."""


def token_logprobs(logits_NV: Tensor, targets_N: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probabilities [N] of the targets under ``softmax(logits / temperature)``."""
    logprobs_NV = (logits_NV.float() / temperature).log_softmax(dim=-1)
    return logprobs_NV.gather(1, targets_N[:, None])[:, 0]


def nll_loss(logprobs_N: Tensor, *, denominator: float) -> Tensor:
    """Supervised loss ``-sum log pi / denominator``."""
    return -logprobs_N.sum() / denominator


def scored_behaviour(logprobs_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """Behaviour log-probabilities; a token without one (NaN) takes the current policy's.

    Its ratio is then exactly 1: it is trained on as if it were on-policy.
    """
    return torch.where(behaviour_N.isfinite(), behaviour_N, logprobs_N.detach())


def ppo_clip(
    logprobs_N: Tensor,
    behaviour_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyTerms:
    """Clipped surrogate against the behaviour policy.

    ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` with ``r = pi / mu`` (PPO,
    Schulman et al., arXiv 1707.06347; the wider upper side is clip-higher of DAPO, Yu et
    al., arXiv 2503.14476). With stale samples r holds both the staleness and the step.
    """
    ratio_N = (logprobs_N - scored_behaviour(logprobs_N, behaviour_N)).exp()
    clamped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    plain_N, bounded_N = ratio_N * advantages_N, clamped_N * advantages_N
    clipped_N = (bounded_N < plain_N).detach()
    return PolicyTerms(-torch.minimum(plain_N, bounded_N), ratio_N.detach(), clipped_N)


def truncated_importance(
    logprobs_N: Tensor, behaviour_N: Tensor, advantages_N: Tensor, *, cap: float
) -> PolicyTerms:
    """Truncated importance sampling without a clip.

    ``-sg(min(r, cap)) A log pi`` with ``r = pi / mu``, sg = stop gradient (Espeholt et
    al., arXiv 1802.01561, at the level of tokens).
    """
    ratio_N = (logprobs_N - scored_behaviour(logprobs_N, behaviour_N)).exp().detach()
    weight_N = ratio_N.clamp(max=cap)
    return PolicyTerms(-weight_N * advantages_N * logprobs_N, ratio_N, ratio_N > cap)


def token_mean(values_N: Tensor, *, denominator: float) -> Tensor:
    """``sum / denominator``: with the count of all tokens of a step, DAPO's token mean."""
    return values_N.sum() / denominator


def entropy(logits_NV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Entropy [N] in nats of ``softmax(logits / temperature)``: ``-sum p log p``."""
    logprobs_NV = (logits_NV.float() / temperature).log_softmax(dim=-1)
    return -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)


def kl_k3(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """KL(pi || reference) per token, estimator k3: ``e^d - 1 - d``, ``d = log ref - log pi``.

    Unbiased for tokens sampled from pi and never negative (Schulman,
    joschu.net/blog/kl-approx.html).
    """
    difference_N = reference_N - logprobs_N
    return difference_N.exp() - 1.0 - difference_N


def effective_sample_share(ratio_N: Tensor) -> float:
    """``(sum r)^2 / (N sum r^2)``: 1 when on-policy, towards 0 when few tokens carry all."""
    total = ratio_N.double().sum() ** 2
    return float(total / (len(ratio_N) * (ratio_N.double() ** 2).sum()))
