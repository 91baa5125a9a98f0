"""Muon: momentum whose matrix updates are orthogonalised.

Keller Jordan et al., kellerjordan.github.io/posts/muon. For a matrix with gradient G:
``M <- beta M + G``, ``U = G + beta M`` (Nesterov), ``U <- U / |U|``, five steps of the
quintic Newton-Schulz iteration push the singular values of U towards 1, and
``W <- (1 - lr wd) W - lr sqrt(max(1, rows / columns)) U``. Only for matrices inside the
network; embeddings, norms and heads belong to AdamW.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalised(matrix: Tensor, *, steps: int = 5) -> Tensor:
    """A matrix with the same singular vectors and singular values near 1 (about 0.7 to 1.2)."""
    a, b, c = QUINTIC
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.t() if tall else x
    for _ in range(steps):
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.t() if tall else x
    return result


class Muon(Optimizer):
    """Optimizer for a list of matrices. State: one momentum buffer for each."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = closure() if closure else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        gradient, momentum = parameter.grad, state["momentum"]
        assert gradient is not None
        momentum.mul_(group["momentum"]).add_(gradient)
        update = orthogonalised(gradient.add(momentum, alpha=group["momentum"]))
        scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * scale)
