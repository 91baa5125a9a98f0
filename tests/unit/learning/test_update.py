"""Updates: schedules, guards, and Muon's matrices."""

import math

import pytest
import torch
from torch import nn

from trialyard.core.errors import LearnerError
from trialyard.learning.muon import Muon, orthogonalised
from trialyard.learning.update import adamw, apply_gradients, linear_schedule, mark_peaks


def test_the_schedule_rises_and_falls_linearly_and_ends_flat() -> None:
    shares = [
        linear_schedule(step, steps=25, warmup_steps=5, final_share=0.1) for step in range(40)
    ]
    assert shares[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert shares[5] == 1.0
    assert shares[15] == pytest.approx(0.55)
    assert shares[25:] == pytest.approx([0.1] * 15)
    assert linear_schedule(0, steps=0, warmup_steps=0, final_share=0.5) == 1.0


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_an_unsound_number_reaches_neither_weights_nor_optimiser(where: str) -> None:
    model = nn.Linear(3, 2)
    (optimizer,) = mark_peaks([adamw(model.parameters(), 0.1)])
    before = [parameter.clone() for parameter in model.parameters()]
    model(torch.ones(1, 3)).sum().backward()
    if where == "gradient":
        assert model.weight.grad is not None
        model.weight.grad[0, 0] = math.nan
    loss = math.inf if where == "loss" else 1.0
    with pytest.raises(LearnerError, match="no weight was changed"):
        apply_gradients(model, [optimizer], loss=loss, gradient_norm=1.0)
    assert all(map(torch.equal, before, model.parameters()))
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_are_clipped_together_and_the_norm_before_is_told() -> None:
    model = nn.Linear(2, 1, bias=False)
    (optimizer,) = mark_peaks([torch.optim.SGD(model.parameters(), lr=1.0)])
    before = model.weight.clone()
    (model(torch.tensor([[30.0, 40.0]])) * 1.0).sum().backward()
    norm = apply_gradients(model, [optimizer], loss=0.0, gradient_norm=1.0, rate_share=0.5)
    assert norm == pytest.approx(50.0)
    assert (before - model.weight).tolist()[0] == pytest.approx([0.3, 0.4], abs=1e-4)


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8)])
def test_orthogonalised_keeps_directions_and_levels_sizes(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    result = orthogonalised(matrix)
    inner = left.t() @ result @ right.t()
    sizes = inner.diagonal()
    assert sizes.min() > 0.3
    assert sizes.max() < 1.3
    assert (inner - torch.diag(sizes)).abs().max() < 0.05


def test_muon_takes_the_documented_step() -> None:
    generator = torch.Generator().manual_seed(2)
    weight = nn.Parameter(torch.randn(6, 3, generator=generator))
    expected, momentum = weight.detach().clone(), torch.zeros(6, 3)
    optimizer = Muon([weight], lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(3):
        gradient = torch.randn(6, 3, generator=generator)
        weight.grad = gradient.clone()
        optimizer.step()
        momentum = 0.9 * momentum + gradient
        update = orthogonalised(gradient + 0.9 * momentum)
        expected = expected * (1 - 0.1 * 0.01) - 0.1 * math.sqrt(6 / 3) * update
    assert torch.allclose(weight, expected, atol=1e-5)
