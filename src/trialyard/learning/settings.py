"""Settings of the two fits. The defaults are the recipe that was measured for a tiny policy."""

from dataclasses import dataclass
from typing import Literal

MICRO_TOKENS = 4096
"""Padded tokens run forward and backward at once; larger steps accumulate gradients."""


@dataclass(frozen=True, slots=True)
class SftSettings:
    """Supervised fit: Muon for the matrices of the layers, AdamW for everything else.

    Learning rates fall linearly to `final_share` of their peak over `steps`.
    """

    steps: int = 250
    matrix_learning_rate: float = 0.02
    learning_rate: float = 1e-2
    final_share: float = 0.1
    warmup_steps: int = 5
    gradient_norm: float = 1.0
    micro_tokens: int = MICRO_TOKENS


@dataclass(frozen=True, slots=True)
class RlSettings:
    """Policy-gradient fit: AdamW, a clipped surrogate against the behaviour policy.

    `minibatch` counts sequences: a batch is cut into equal parts of about this size,
    each one update. The learning rate falls linearly from `learning_rate` to
    `final_learning_rate` over `steps`. `temperature` is the one that rollouts sample
    at; other changes of the distribution (top-p below 1) cannot be trained on exactly.
    """

    steps: int = 200
    minibatch: int = 64
    epochs: int = 1
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-4
    warmup_steps: int = 5
    loss: Literal["ppo_clip", "truncated_importance"] = "ppo_clip"
    clip_low: float = 0.2
    clip_high: float = 0.28
    importance_cap: float = 2.0
    entropy_weight: float = 0.0
    temperature: float = 1.0
    gradient_norm: float = 1.0
    micro_tokens: int = MICRO_TOKENS
