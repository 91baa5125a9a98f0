"""The torch learner: it learns, repeats itself bit by bit, and agrees with the sampler."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.models import tiny_directory
from trialyard.core.errors import LearnerError
from trialyard.core.learner import TrainingSequence
from trialyard.core.policy import Message, Sampling
from trialyard.learning.learner import TorchLearner
from trialyard.learning.pack import pack, select
from trialyard.learning.rl import RlFit
from trialyard.learning.settings import RlSettings, SftSettings
from trialyard.learning.sft import SftFit, split_parameters
from trialyard.policies.hf import HFPolicy
from trialyard.policies.hf_directory import load_model, load_weights, weights_bytes


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_directory(tmp_path_factory.mktemp("model"))


def sampled(
    directory: Path, count: int = 12, *, temperature: float = 1.0
) -> list[TrainingSequence]:
    """Real samples of the model with made-up advantages of both signs."""

    async def draw() -> list[TrainingSequence]:
        policy = HFPolicy(directory)
        try:
            asked = [
                policy.complete(
                    [Message("user", "sum of list " * (1 + index % 3))],
                    Sampling(max_tokens=14, seed=index, temperature=temperature),
                )
                for index in range(count)
            ]
            answers = await asyncio.gather(*asked)
        finally:
            await policy.close()
        sequences = []
        for index, answer in enumerate(answers):
            prompt, output = answer.prompt_ids or (), answer.output_ids or ()
            mask = (False,) * len(prompt) + (True,) * len(output)
            logprobs = (0.0,) * len(prompt) + (answer.logprobs or ())
            advantages = tuple((-1.0) ** index if counted else 0.0 for counted in mask)
            sequences.append(TrainingSequence((*prompt, *output), mask, logprobs, advantages))
        return sequences

    return asyncio.run(draw())


@pytest.fixture(scope="module")
def samples(directory: Path) -> list[TrainingSequence]:
    return sampled(directory)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_and_learner_agree_on_logprobs(directory: Path, temperature: float) -> None:
    """The gap that the first step reports is the whole mismatch of the two paths."""
    sequences = sampled(directory, temperature=temperature)
    fit = RlFit(load_model(directory), RlSettings(temperature=temperature), seed=0)
    report = fit.step(select(sequences, vocabulary_size=10**6, max_positions=64))
    assert report.metrics["logprob_gap_max"] < 1e-4
    assert report.metrics["clip_share"] == 0.0
    assert report.metrics["effective_sample_share"] == pytest.approx(1.0, abs=1e-4)


async def test_reward_moves_probability(directory: Path, samples: list[TrainingSequence]) -> None:
    learner = TorchLearner(directory, rl=RlSettings(steps=20, learning_rate=1e-2, warmup_steps=0))
    for _ in range(3):
        await learner.rl_step(samples)
    moved = load_model(directory)
    load_weights(moved, await learner.weights(), origin="learner")
    await learner.close()
    batch = pack(samples)
    with torch.no_grad():
        logits = moved(batch.ids_BT, batch.lengths_B, batch.predicting()).log_softmax(-1)
    after = logits.gather(1, batch.targets()[:, None])[:, 0]
    change = after - batch.behaviour_BT[batch.mask_BT]
    advantages = batch.advantages_BT[batch.mask_BT]
    assert float((change * advantages).mean()) > 0.1


async def test_supervision_lowers_the_loss(
    directory: Path, samples: list[TrainingSequence]
) -> None:
    learner = TorchLearner(directory, sft=SftSettings(steps=60))
    losses = [(await learner.sft_step(samples)).loss for _ in range(40)]
    await learner.close()
    assert losses[-1] < 0.5 * losses[0]


async def test_a_restored_learner_continues_bit_by_bit(
    directory: Path, samples: list[TrainingSequence]
) -> None:
    settings = RlSettings(steps=8, minibatch=4, epochs=2)
    whole = TorchLearner(directory, rl=settings, seed=5)
    await whole.sft_step(samples)
    await whole.rl_step(samples)
    state = await whole.save()
    expected = [await whole.rl_step(samples[:9]), await whole.sft_step(samples)]
    weights = await whole.weights()
    await whole.close()

    resumed = TorchLearner(directory, rl=settings, seed=5)
    await resumed.restore(state)
    got = [await resumed.rl_step(samples[:9]), await resumed.sft_step(samples)]
    assert [replace(r, duration_s=0.0) for r in got] == [
        replace(r, duration_s=0.0) for r in expected
    ]
    assert await resumed.weights() == weights
    assert await resumed.save() != state
    await resumed.close()


async def test_the_order_of_minibatches_comes_from_the_seed(
    directory: Path, samples: list[TrainingSequence]
) -> None:
    weights = []
    for seed in (1, 1, 2):
        learner = TorchLearner(directory, rl=RlSettings(minibatch=4), seed=seed)
        await learner.rl_step(samples)
        weights.append(await learner.weights())
        await learner.close()
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("fit", ["sft", "rl"])
def test_micro_batches_change_nothing(
    directory: Path, samples: list[TrainingSequence], fit: str
) -> None:
    """Denominators are those of the whole minibatch, whatever its cut."""
    selection = select(samples, vocabulary_size=10**6, max_positions=64)
    results = []
    for micro_tokens in (10**6, 40):
        model = load_model(directory)
        if fit == "sft":
            SftFit(model, SftSettings(micro_tokens=micro_tokens)).step(selection)
        else:
            RlFit(model, RlSettings(micro_tokens=micro_tokens, epochs=2), 0).step(selection)
        results.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert (results[0] - results[1]).abs().max() < 2e-4


async def test_unscored_tokens_are_counted_and_harmless(
    directory: Path, samples: list[TrainingSequence]
) -> None:
    first = samples[0]
    logprobs = list(first.logprobs_T)
    logprobs[-1], logprobs[-2] = math.nan, -math.inf
    learner = TorchLearner(directory)
    report = await learner.rl_step([replace(first, logprobs_T=tuple(logprobs)), *samples[1:]])
    assert report.metrics["unscored_tokens"] == 2
    assert math.isfinite(report.loss)
    await learner.rl_step(samples)
    await learner.close()


async def test_a_refused_step_leaves_weights_and_optimiser_alone(
    directory: Path, samples: list[TrainingSequence], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = TorchLearner(directory)
    await learner.rl_step(samples)
    before = await learner.save()
    poisoned = replace(samples[3], advantages_T=(math.nan,) * len(samples[3].mask_T))
    with pytest.raises(LearnerError, match="not finite"):
        await learner.rl_step([*samples, poisoned])
    with pytest.raises(LearnerError, match="no sequence"):
        await learner.rl_step([])
    huge = [replace(s, advantages_T=tuple(a * 1e38 for a in s.advantages_T)) for s in samples]
    with pytest.raises(LearnerError, match="no weight was changed"):
        await learner.rl_step(huge)
    assert await learner.save() == before
    await learner.close()


async def test_garbage_is_not_restored(directory: Path) -> None:
    learner = TorchLearner(directory)
    before = await learner.weights()
    for state in (b"", b"garbage", (await learner.save())[:-100]):
        with pytest.raises(LearnerError, match="cannot be read"):
            await learner.restore(state)
    assert await learner.weights() == before
    await learner.close()


def test_muon_gets_the_matrices_of_layers_only(directory: Path) -> None:
    model = load_model(directory)
    matrices, others = split_parameters(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all(".layers." in names[id(p)] and p.dim() == 2 for p in matrices)
    assert len(matrices) == 2 * 7
    assert len(matrices) + len(others) == len(names)


async def test_the_entropy_bonus_raises_entropy(
    directory: Path, samples: list[TrainingSequence]
) -> None:
    still = [replace(s, advantages_T=(0.0,) * len(s.mask_T)) for s in samples]
    learner = TorchLearner(directory, rl=RlSettings(entropy_weight=0.1, warmup_steps=0))
    entropies = [(await learner.rl_step(still)).metrics["entropy"] for _ in range(4)]
    await learner.close()
    assert entropies == sorted(entropies)
    assert entropies[-1] > entropies[0] + 1e-3


async def test_no_advantage_no_change(directory: Path, samples: list[TrainingSequence]) -> None:
    still = [replace(s, advantages_T=(0.0,) * len(s.mask_T)) for s in samples]
    learner = TorchLearner(directory)
    await learner.rl_step(still)
    assert await learner.weights() == weights_bytes(load_model(directory))
    await learner.close()
