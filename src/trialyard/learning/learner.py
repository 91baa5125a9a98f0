"""The learner in this process: one model, a supervised fit and a policy-gradient fit.

Work runs on one thread of its own, so the event loop stays free; calls are served one
after the other. `save` holds weights, optimisers and step counts; the order of
minibatches is derived from seed and step, so a restored learner continues bit by bit.
The model runs in evaluation mode always: the probabilities trained on are those that
were sampled from.
"""

import asyncio
import io
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from trialyard.core.clock import Clock, SystemClock
from trialyard.core.errors import LearnerError
from trialyard.core.learner import StepReport, TrainingSequence
from trialyard.learning.pack import Selection, select
from trialyard.learning.rl import RlFit
from trialyard.learning.settings import RlSettings, SftSettings
from trialyard.learning.sft import SftFit
from trialyard.policies.hf_directory import load_model, load_weights, weights_bytes

Result = TypeVar("Result")


class TorchLearner:
    """Implements `Learner` for a model directory. Torch's thread count is process-wide."""

    def __init__(
        self,
        directory: Path,
        *,
        sft: SftSettings | None = None,
        rl: RlSettings | None = None,
        seed: int = 0,
        num_threads: int = 1,
        clock: Clock | None = None,
    ) -> None:
        torch.set_num_threads(num_threads)
        self._clock = clock or SystemClock()
        self._model = load_model(directory).eval()
        self._sft = SftFit(self._model, sft or SftSettings())
        self._rl = RlFit(self._model, rl or RlSettings(), seed)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="learner")

    async def sft_step(self, sequences: list[TrainingSequence]) -> StepReport:
        return await self._on_worker(lambda: self._timed(self._sft.step, sequences))

    async def rl_step(self, sequences: list[TrainingSequence]) -> StepReport:
        return await self._on_worker(lambda: self._timed(self._rl.step, sequences))

    async def weights(self) -> bytes:
        return await self._on_worker(lambda: weights_bytes(self._model))

    async def save(self) -> bytes:
        return await self._on_worker(self._save)

    async def restore(self, state: bytes) -> None:
        await self._on_worker(lambda: self._restore(state))

    async def close(self) -> None:
        await asyncio.to_thread(self._worker.shutdown)

    async def _on_worker(self, work: Callable[[], Result]) -> Result:
        try:
            future = self._worker.submit(work)
        except RuntimeError as error:
            raise LearnerError("the learner is closed; make a new one") from error
        return await asyncio.wrap_future(future)

    def _timed(
        self, step: Callable[[Selection], StepReport], sequences: Sequence[TrainingSequence]
    ) -> StepReport:
        started_s = self._clock.monotonic_s()
        selection = select(
            sequences,
            vocabulary_size=self._model.vocabulary_size,
            max_positions=self._model.max_positions,
        )
        report = step(selection)
        return replace(report, duration_s=self._clock.monotonic_s() - started_s)

    def _save(self) -> bytes:
        buffer = io.BytesIO()
        state = {
            "weights": weights_bytes(self._model),
            "sft": self._sft.state(),
            "rl": self._rl.state(),
        }
        torch.save(state, buffer)
        return buffer.getvalue()

    def _restore(self, state: bytes) -> None:
        try:
            parts: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
            weights, sft, rl = parts["weights"], parts["sft"], parts["rl"]
        except (RuntimeError, ValueError, LookupError, EOFError, pickle.UnpicklingError) as error:
            raise LearnerError(
                f"the saved learner state cannot be read ({error}); restore an older checkpoint"
            ) from error
        load_weights(self._model, weights, origin="weights of the saved learner state")
        self._sft.restore(sft)
        self._rl.restore(rl)
