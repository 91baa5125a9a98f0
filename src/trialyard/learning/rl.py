"""Policy-gradient fit on sampled trajectories.

A batch is shuffled (by a stream that depends on seed, step and epoch only), cut into
equal minibatches, and each gives one update: token mean over the minibatch, whose
number of counted tokens is the denominator of all its micro-batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trialyard.core.errors import LearnerError
from trialyard.core.ids import derive_random
from trialyard.core.learner import StepReport, TrainingSequence
from trialyard.learning.loss import (
    PolicyTerms,
    effective_sample_share,
    entropy,
    kl_k3,
    ppo_clip,
    scored_behaviour,
    token_logprobs,
    token_mean,
    truncated_importance,
)
from trialyard.learning.pack import Batch, Selection, minibatches, pack_by_length
from trialyard.learning.settings import RlSettings
from trialyard.learning.update import (
    adamw,
    apply_gradients,
    linear_schedule,
    mark_peaks,
    restore_state,
    state_of,
)


@dataclass
class Watched:
    """Per-token numbers of one step, gathered for its report."""

    ratios: list[Tensor] = field(default_factory=list)
    clipped: list[Tensor] = field(default_factory=list)
    kl: list[Tensor] = field(default_factory=list)
    gaps: list[Tensor] = field(default_factory=list)
    """|log pi - log mu| before the first update: staleness and sampler mismatch alone."""
    entropies: list[Tensor] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    unscored: int = 0

    def metrics(self) -> dict[str, float]:
        ratios_N = torch.cat(self.ratios)
        return {
            "ratio_max": float(ratios_N.max()),
            "effective_sample_share": effective_sample_share(ratios_N),
            "clip_share": float(torch.cat(self.clipped).float().mean()),
            "kl_behaviour": float(torch.cat(self.kl).mean()),
            "logprob_gap_mean": float(torch.cat(self.gaps).mean()),
            "logprob_gap_max": float(torch.cat(self.gaps).max()),
            "entropy": float(torch.cat(self.entropies).mean()),
            "gradient_norm": max(self.gradient_norms),
            "unscored_tokens": float(self.unscored),
            "updates": float(len(self.losses)),
        }


class RlFit:
    """Optimiser and step count of the policy-gradient fit of one model."""

    def __init__(self, model: nn.Module, settings: RlSettings, seed: int) -> None:
        self._model, self._settings, self._seed = model, settings, seed
        self._optimizers = mark_peaks([adamw(model.parameters(), settings.learning_rate)])
        self._steps_done = 0

    def step(self, selection: Selection) -> StepReport:
        """All updates of one batch. Duration is left to the caller."""
        if not selection.sequences:
            raise LearnerError(f"no sequence can be trained on: {selection.skipped}")
        settings = self._settings
        share = linear_schedule(
            self._steps_done,
            steps=settings.steps,
            warmup_steps=settings.warmup_steps,
            final_share=settings.final_learning_rate / settings.learning_rate,
        )
        watched = Watched()
        for epoch in range(settings.epochs):
            rng = derive_random(self._seed, "minibatches", self._steps_done, epoch)
            for minibatch in minibatches(selection.sequences, settings.minibatch, rng.shuffle):
                self._update(minibatch, share, watched)
        self._steps_done += 1
        num_tokens = sum(sum(sequence.mask_T[1:]) for sequence in selection.sequences)
        metrics = watched.metrics() | {"learning_rate": settings.learning_rate * share}
        metrics |= {f"skipped_{reason}": float(n) for reason, n in selection.skipped.items()}
        loss = sum(watched.losses) / len(watched.losses)
        return StepReport(self._steps_done, loss, num_tokens, 0.0, metrics)

    def _update(
        self, minibatch: Sequence[TrainingSequence], rate_share: float, watched: Watched
    ) -> None:
        batches = pack_by_length(minibatch, max_tokens=self._settings.micro_tokens)
        num_tokens = sum(batch.num_tokens for batch in batches)
        total = 0.0
        for batch in batches:
            loss = self._loss(batch, num_tokens, watched)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        norm = apply_gradients(
            self._model,
            self._optimizers,
            loss=total,
            gradient_norm=self._settings.gradient_norm,
            rate_share=rate_share,
        )
        watched.gradient_norms.append(norm)
        watched.losses.append(total)

    def _loss(self, batch: Batch, denominator: int, watched: Watched) -> Tensor:
        settings = self._settings
        logits_NV: Tensor = self._model(batch.ids_BT, batch.lengths_B, batch.predicting())
        logprobs_N = token_logprobs(logits_NV, batch.targets(), temperature=settings.temperature)
        behaviour_N = batch.behaviour_BT[batch.mask_BT]
        terms = self._terms(logprobs_N, behaviour_N, batch.advantages_BT[batch.mask_BT])
        loss = token_mean(terms.loss_N, denominator=denominator)
        with torch.set_grad_enabled(settings.entropy_weight > 0):
            entropy_N = entropy(logits_NV, temperature=settings.temperature)
        if settings.entropy_weight > 0:
            bonus = token_mean(entropy_N, denominator=denominator)
            loss = loss - settings.entropy_weight * bonus
        with torch.no_grad():
            scored_N = scored_behaviour(logprobs_N, behaviour_N)
            watched.ratios.append(terms.ratio_N)
            watched.clipped.append(terms.clipped_N)
            watched.kl.append(kl_k3(scored_N, logprobs_N))
            watched.entropies.append(entropy_N.detach())
            watched.unscored += int(behaviour_N.isnan().sum())
            if not watched.losses:
                watched.gaps.append((logprobs_N - scored_N).abs())
        return loss

    def _terms(self, logprobs_N: Tensor, behaviour_N: Tensor, advantages_N: Tensor) -> PolicyTerms:
        settings = self._settings
        if settings.loss == "truncated_importance":
            return truncated_importance(
                logprobs_N, behaviour_N, advantages_N, cap=settings.importance_cap
            )
        return ppo_clip(
            logprobs_N,
            behaviour_N,
            advantages_N,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
        )

    def state(self) -> dict[str, Any]:
        return {"steps_done": self._steps_done, "optimizers": state_of(self._optimizers)}

    def restore(self, state: dict[str, Any]) -> None:
        self._steps_done = int(state["steps_done"])
        restore_state(self._optimizers, state["optimizers"])
