"""What every learner promises."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models import tiny_directory
from trialyard.core.errors import LearnerError
from trialyard.core.learner import Learner, TrainingSequence
from trialyard.learning.learner import TorchLearner
from trialyard.learning.process import ProcessLearner
from trialyard.testing.learner import FakeLearner

MakeLearner = Callable[[], Learner]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_directory(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["torch", "process", "fake"])
async def make(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[MakeLearner]:
    made: list[Learner] = []

    def make() -> Learner:
        learner: Learner
        if request.param == "torch":
            learner = TorchLearner(directory)
        elif request.param == "process":
            learner = ProcessLearner(directory)
        else:
            learner = FakeLearner()
        made.append(learner)
        return learner

    yield make
    for learner in made:
        await learner.close()


def sequence(*ids: int, advantage: float = 1.0) -> TrainingSequence:
    mask = (False, False, *([True] * (len(ids) - 2)))
    return TrainingSequence(
        ids, mask, tuple(-1.0 * m for m in mask), tuple(advantage * m for m in mask)
    )


BATCH = [sequence(2, 3, 6, 5), sequence(2, 7, 9, 9, 5, advantage=-1.0)]


async def test_steps_count_and_change_weights(make: MakeLearner) -> None:
    learner = make()
    seen = [await learner.weights()]
    first = await learner.sft_step(BATCH)
    seen.append(await learner.weights())
    for step in (1, 2):
        report = await learner.rl_step(BATCH)
        assert report.step == step
        seen.append(await learner.weights())
    assert first.step == 1
    assert first.num_tokens == report.num_tokens == 5
    assert math.isfinite(report.loss)
    assert report.duration_s >= 0
    assert len(set(seen)) == 4


async def test_a_restored_learner_goes_on_as_if_nothing_had_happened(make: MakeLearner) -> None:
    whole, resumed = make(), make()
    await whole.sft_step(BATCH)
    await whole.rl_step(BATCH)
    state = await whole.save()
    await resumed.restore(state)
    assert await resumed.weights() == await whole.weights()
    for learner in (whole, resumed):
        await learner.rl_step(BATCH[1:])
        await learner.sft_step(BATCH)
    assert await resumed.weights() == await whole.weights()
    assert (await resumed.rl_step(BATCH)).step == (await whole.rl_step(BATCH)).step


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [TrainingSequence((), (), (), ())],
        [*BATCH, replace(BATCH[0], advantages_T=(0.0, 0.0, math.nan, 1.0))],
        [*BATCH, replace(BATCH[0], advantages_T=(0.0, 0.0, math.inf, 1.0))],
    ],
    ids=["nothing", "empty", "nan", "infinite"],
)
async def test_an_unsound_batch_is_refused_and_changes_nothing(
    make: MakeLearner, batch: list[TrainingSequence]
) -> None:
    learner = make()
    await learner.rl_step(BATCH)
    before = await learner.save()
    step: Callable[[list[TrainingSequence]], Awaitable[object]] = learner.rl_step
    with pytest.raises(LearnerError):
        await step(batch)
    assert await learner.save() == before
    assert (await learner.rl_step(BATCH)).step == 2


async def test_garbage_is_not_restored(make: MakeLearner) -> None:
    learner = make()
    before = await learner.weights()
    with pytest.raises(LearnerError):
        await learner.restore(b"garbage")
    assert await learner.weights() == before


async def test_close_is_final_and_may_be_repeated(make: MakeLearner) -> None:
    learner = make()
    await learner.close()
    await learner.close()
    with pytest.raises(LearnerError, match="closed"):
        await learner.weights()
