"""Supervised fit: masked negative log-likelihood on demonstrations.

Loss: ``-sum over counted tokens of log pi / their number in the step``; micro-batches
share that denominator.
"""

from typing import Any

from torch import Tensor, nn

from trialyard.core.errors import LearnerError
from trialyard.core.learner import StepReport
from trialyard.learning.loss import nll_loss, token_logprobs
from trialyard.learning.muon import Muon
from trialyard.learning.pack import Selection, pack_by_length
from trialyard.learning.settings import SftSettings
from trialyard.learning.update import (
    adamw,
    apply_gradients,
    linear_schedule,
    mark_peaks,
    restore_state,
    state_of,
)


class SftFit:
    """Optimisers and step count of the supervised fit of one model."""

    def __init__(self, model: nn.Module, settings: SftSettings) -> None:
        self._model, self._settings = model, settings
        matrices, others = split_parameters(model)
        self._optimizers = mark_peaks(
            [
                Muon(matrices, lr=settings.matrix_learning_rate),
                adamw(others, settings.learning_rate),
            ]
        )
        self._steps_done = 0

    def step(self, selection: Selection) -> StepReport:
        """One update on all sequences. Duration is left to the caller."""
        if not selection.sequences:
            raise LearnerError(f"no sequence can be trained on: {selection.skipped}")
        settings = self._settings
        share = linear_schedule(
            self._steps_done,
            steps=settings.steps,
            warmup_steps=settings.warmup_steps,
            final_share=settings.final_share,
        )
        batches = pack_by_length(selection.sequences, max_tokens=settings.micro_tokens)
        num_tokens = sum(batch.num_tokens for batch in batches)
        total = 0.0
        for batch in batches:
            logits_NV: Tensor = self._model(batch.ids_BT, batch.lengths_B, batch.predicting())
            logprobs_N = token_logprobs(logits_NV, batch.targets())
            loss = nll_loss(logprobs_N, denominator=num_tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        norm = apply_gradients(
            self._model,
            self._optimizers,
            loss=total,
            gradient_norm=settings.gradient_norm,
            rate_share=share,
        )
        self._steps_done += 1
        metrics = {"gradient_norm": norm, "learning_rate_share": share}
        metrics |= {f"skipped_{reason}": float(n) for reason, n in selection.skipped.items()}
        return StepReport(self._steps_done, total, num_tokens, 0.0, metrics)

    def state(self) -> dict[str, Any]:
        return {"steps_done": self._steps_done, "optimizers": state_of(self._optimizers)}

    def restore(self, state: dict[str, Any]) -> None:
        self._steps_done = int(state["steps_done"])
        restore_state(self._optimizers, state["optimizers"])


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices inside the layers, and all other parameters (embedding, head, norms)."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        inner = parameter.dim() == 2 and "embed" not in name and "head" not in name
        (matrices if inner else others).append(parameter)
    return matrices, others
