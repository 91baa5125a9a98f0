"""Sampling from logits, repeatable row by row.

Every row brings its own uniform number for the position that it samples, drawn from
its own seed, and turns it into a token by inverting the cumulative distribution: the
outcome does not depend on which other rows are in the batch. The log-probability
returned is that of the distribution really sampled from, after temperature and top-p
(greedy is certain: 0.0).

Shapes: N rows, V vocabulary.
"""

import torch
from torch import Tensor

GREEDY_TEMPERATURE = 0.0


def uniforms(seed: int, count: int) -> list[float]:
    """`count` numbers in [0, 1) with 24 random bits each, determined by `seed`."""
    generator = torch.Generator().manual_seed(seed & (2**63 - 1))
    drawn: list[float] = torch.rand(count, generator=generator).tolist()
    return drawn


def scaled_logprobs(logits_NV: Tensor, temperatures_N: Tensor, top_p_N: Tensor) -> Tensor:
    """Log-probabilities [N, V] after temperature and top-p; -inf outside the nucleus.

    Nucleus sampling (Holtzman et al., arXiv 1904.09751): the smallest set of most
    likely tokens whose probability reaches top-p, renormalised.
    """
    safe_N = torch.where(temperatures_N > 0, temperatures_N, 1.0)
    logprobs_NV = (logits_NV.float() / safe_N[:, None]).log_softmax(dim=-1)
    if bool((top_p_N >= 1.0).all()):
        return logprobs_NV
    ordered_NV, order_NV = logprobs_NV.sort(dim=-1, descending=True)
    before_NV = ordered_NV.exp().cumsum(dim=-1) - ordered_NV.exp()
    outside_NV = (before_NV >= top_p_N[:, None]) & (top_p_N[:, None] < 1.0)
    outside_NV = torch.zeros_like(outside_NV).scatter(1, order_NV, outside_NV)
    return logprobs_NV.masked_fill(outside_NV, float("-inf")).log_softmax(dim=-1)


def sample(
    logits_NV: Tensor, temperatures_N: Tensor, top_p_N: Tensor, uniforms_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens [N] and their log-probabilities [N]."""
    logprobs_NV = scaled_logprobs(logits_NV, temperatures_N, top_p_N)
    cumulative_NV = logprobs_NV.double().exp().cumsum(dim=-1)
    threshold_N1 = uniforms_N.double()[:, None] * cumulative_NV[:, -1:]
    tokens_N = torch.searchsorted(cumulative_NV, threshold_N1, right=True)[:, 0]
    chosen_N = logprobs_NV.gather(1, tokens_N[:, None])[:, 0]
    greedy_N = temperatures_N == GREEDY_TEMPERATURE
    if bool(greedy_N.any()):
        tokens_N = torch.where(greedy_N, logits_NV.argmax(dim=-1), tokens_N)
        chosen_N = torch.where(greedy_N, torch.zeros_like(chosen_N), chosen_N)
    return tokens_N, chosen_N
