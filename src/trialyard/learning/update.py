"""One guarded optimiser update.

A number that is not sound (loss or gradient NaN or infinite) raises `LearnerError`
before any optimiser sees it, so it never reaches weights or optimiser state.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from trialyard.core.errors import LearnerError


def linear_schedule(step: int, *, steps: int, warmup_steps: int, final_share: float) -> float:
    """Share of the peak learning rate at `step` (from 0): linear up, then linear down."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 1.0 - (1.0 - final_share) * min(1.0, progress)


def mark_peaks(optimizers: Sequence[Optimizer]) -> list[Optimizer]:
    """Remember the rates that the optimisers were made with as their peaks."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return list(optimizers)


def apply_gradients(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    loss: float,
    gradient_norm: float,
    rate_share: float = 1.0,
) -> float:
    """Clip and apply the accumulated gradients; return their norm before the clip.

    `rate_share` is the share of their peak learning rates at which the optimisers step.
    """
    try:
        if not math.isfinite(loss):
            raise LearnerError(f"the loss is {loss}; the step was refused, no weight was changed")
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), gradient_norm))
        if not math.isfinite(norm):
            raise LearnerError(
                f"the gradient norm is {norm}; the step was refused, no weight was changed"
            )
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * rate_share
            optimizer.step()
    finally:
        model.zero_grad(set_to_none=True)
    return norm


def state_of(optimizers: Sequence[Optimizer]) -> list[dict[str, object]]:
    """State of optimisers, to be written with `torch.save`."""
    return [optimizer.state_dict() for optimizer in optimizers]


def restore_state(optimizers: Sequence[Optimizer], states: Sequence[dict[str, object]]) -> None:
    """Bring optimisers back to a state of `state_of`."""
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict(state)


def adamw(parameters: Iterable[torch.Tensor], learning_rate: float) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) without weight decay."""
    return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0, fused=True)
