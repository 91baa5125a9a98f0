"""A learner without a model, for tests of the loop around it.

Its weights are a text that changes with every step and depends on nothing but the
sequences seen, so two histories are equal exactly when their weights are.
"""

import hashlib
import json
import math
from collections.abc import Sequence

from trialyard.core.errors import LearnerError
from trialyard.core.learner import StepReport, TrainingSequence


class FakeLearner:
    """Implements `Learner`. `steps` lists what every step was given."""

    def __init__(self) -> None:
        self._digest = ""
        self._counts = {"sft": 0, "rl": 0}
        self._closed = False
        self.steps: list[list[TrainingSequence]] = []

    async def sft_step(self, sequences: list[TrainingSequence]) -> StepReport:
        return self._step("sft", sequences)

    async def rl_step(self, sequences: list[TrainingSequence]) -> StepReport:
        return self._step("rl", sequences)

    async def weights(self) -> bytes:
        self._check_open()
        return self._digest.encode()

    async def save(self) -> bytes:
        self._check_open()
        return json.dumps([self._digest, self._counts]).encode()

    async def restore(self, state: bytes) -> None:
        self._check_open()
        try:
            self._digest, self._counts = json.loads(state)
        except (ValueError, TypeError) as error:
            raise LearnerError(f"the saved learner state cannot be read: {error}") from error

    async def close(self) -> None:
        self._closed = True

    def _step(self, kind: str, sequences: Sequence[TrainingSequence]) -> StepReport:
        self._check_open()
        num_tokens = sum(sum(sequence.mask_T[1:]) for sequence in sequences)
        if not num_tokens:
            raise LearnerError("no sequence can be trained on")
        if not all(math.isfinite(a) for sequence in sequences for a in sequence.advantages_T):
            raise LearnerError("an advantage is not finite; no weight was changed")
        self.steps.append(list(sequences))
        self._counts[kind] += 1
        text = f"{self._digest}{kind}{list(sequences)!r}"
        self._digest = hashlib.sha256(text.encode()).hexdigest()
        return StepReport(self._counts[kind], 0.0, num_tokens, 0.0)

    def _check_open(self) -> None:
        if self._closed:
            raise LearnerError("the learner is closed; make a new one")
