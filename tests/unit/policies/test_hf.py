"""HFPolicy: batching that nobody can see, versions that never mix, honest endings."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from tests.models import tiny_directory
from trialyard.core.errors import ContextOverflow, PolicyError, StoreError
from trialyard.core.policy import Completion, Message, Sampling
from trialyard.policies.hf import HFPolicy
from trialyard.policies.hf_directory import load_model, weights_bytes
from trialyard.policies.hf_lanes import Lane, Request
from trialyard.policies.hf_rows import survivors

CASE_41 = json.loads(
    Path("tests/cases/41_truncation_parse_error_and_context_end/lengths.json").read_text()
)
PROMPTS = ["sum of list", "return 1", "sorted( v ) + [ 1 ]", "2", "if v return list"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_directory(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def policy(directory: Path) -> AsyncIterator[HFPolicy]:
    policy = HFPolicy(directory)
    yield policy
    await policy.close()


def ask(text: str) -> list[Message]:
    return [Message("user", text)]


async def first_token(policy: HFPolicy) -> None:
    while not policy.num_sampled_tokens:  # noqa: ASYNC110 - a count of another thread
        await asyncio.sleep(0)


def other_weights(tmp_path: Path) -> bytes:
    return weights_bytes(load_model(tiny_directory(tmp_path / "other", seed=99)))


def exact_logprobs(directory: Path, completion: Completion) -> list[float]:
    """Log-probabilities of the output by one whole forward pass."""
    assert completion.prompt_ids is not None
    assert completion.output_ids is not None
    ids_BT = torch.tensor([[*completion.prompt_ids, *completion.output_ids]])
    model = load_model(directory)
    with torch.no_grad():
        logits = model(ids_BT, torch.tensor([ids_BT.shape[1]]), torch.ones_like(ids_BT).bool())
    rows = logits[len(completion.prompt_ids) - 1 : -1].log_softmax(dim=-1)
    return [float(rows[i, token]) for i, token in enumerate(completion.output_ids)]


async def test_logprobs_are_those_of_the_model(policy: HFPolicy, directory: Path) -> None:
    asked = [policy.complete(ask(text), Sampling(max_tokens=20, seed=1)) for text in PROMPTS]
    for completion in await asyncio.gather(*asked):
        assert completion.logprobs is not None
        expected = exact_logprobs(directory, completion)
        assert list(completion.logprobs) == pytest.approx(expected, abs=1e-4)
        assert len(completion.logprobs) == len(completion.output_ids or ())


async def test_a_seed_gives_the_same_answer_alone_and_in_company(policy: HFPolicy) -> None:
    alone = [
        await policy.complete(ask(text), Sampling(max_tokens=30, seed=seed))
        for seed, text in enumerate(PROMPTS)
    ]
    crowd = [
        policy.complete(ask(text), Sampling(max_tokens=30, seed=seed))
        for _ in range(20)
        for seed, text in enumerate(PROMPTS)
    ]
    for index, completion in enumerate(await asyncio.gather(*crowd)):
        assert completion.output_ids == alone[index % len(PROMPTS)].output_ids


async def test_without_a_seed_answers_differ(policy: HFPolicy) -> None:
    answers = await asyncio.gather(
        *(policy.complete(ask("sum"), Sampling(max_tokens=12)) for _ in range(8))
    )
    assert len({answer.output_ids for answer in answers}) > 1


async def test_greedy_is_certain_and_repeatable(policy: HFPolicy) -> None:
    first = await policy.complete(ask("sum"), Sampling(temperature=0, max_tokens=9))
    again = await policy.complete(ask("sum"), Sampling(temperature=0, max_tokens=9))
    assert first.output_ids == again.output_ids
    assert set(first.logprobs or ()) == {0.0}


async def test_a_rollout_continues_its_own_tokens(policy: HFPolicy) -> None:
    messages = ask("sum of list")
    seen: list[int] = []
    for turn in range(3):
        answer = await policy.complete(messages, Sampling(max_tokens=6, seed=turn))
        assert answer.prompt_ids is not None
        assert answer.output_ids is not None
        assert list(answer.prompt_ids[: len(seen)]) == seen
        seen = [*answer.prompt_ids, *answer.output_ids]
        messages += [Message("assistant", answer.text, answer.output_ids), *ask("1")]


async def test_new_weights_never_mix_into_a_completion(
    policy: HFPolicy, directory: Path, tmp_path: Path
) -> None:
    """Requests under way end on the old version with the old model's probabilities."""
    sampling = Sampling(max_tokens=50, seed=3)
    long = [asyncio.ensure_future(policy.complete(ask(text), sampling)) for text in PROMPTS]
    await first_token(policy)
    await policy.load(other_weights(tmp_path), 7)
    assert policy.version == 7
    fresh = await policy.complete(ask("sum"), sampling)
    assert [span.version for span in fresh.versions] == [7]
    new = exact_logprobs(tmp_path / "other", fresh)
    assert list(fresh.logprobs or ()) == pytest.approx(new, abs=1e-4)
    versions = set()
    for completion in await asyncio.gather(*long):
        (span,) = completion.versions
        versions.add(span.version)
        assert span.num_tokens == len(completion.output_ids or ())
        origin = directory if span.version == 0 else tmp_path / "other"
        expected = exact_logprobs(origin, completion)
        assert list(completion.logprobs or ()) == pytest.approx(expected, abs=1e-4)
    assert 0 in versions


async def test_unfit_weights_are_refused_and_the_old_ones_stay(
    policy: HFPolicy, tmp_path: Path
) -> None:
    before = await policy.complete(ask("sum"), Sampling(max_tokens=20, seed=1))
    larger = weights_bytes(load_model(tiny_directory(tmp_path / "large", d_model=32)))
    poisoned = load_model(tiny_directory(tmp_path / "nan"))
    with torch.no_grad():
        next(poisoned.parameters())[0, 0] = float("nan")
    for weights in (b"garbage", larger, weights_bytes(poisoned)):
        with pytest.raises(StoreError):
            await policy.load(weights, 3)
    assert policy.version == 0
    after = await policy.complete(ask("sum"), Sampling(max_tokens=20, seed=1))
    assert after.output_ids == before.output_ids
    assert after.versions[0].version == 0


async def test_a_full_context_is_an_overflow_and_the_policy_goes_on(policy: HFPolicy) -> None:
    with pytest.raises(ContextOverflow, match="64"):
        await policy.complete(ask("sum " * 70), Sampling())
    answer = await policy.complete(ask("sum " * 58), Sampling(max_tokens=50, seed=0))
    assert len(answer.prompt_ids or ()) + len(answer.output_ids or ()) <= 64


async def test_waiting_callers_learn_that_the_policy_was_closed(directory: Path) -> None:
    policy = HFPolicy(directory)
    waiting = [
        asyncio.ensure_future(policy.complete(ask("sum"), Sampling(max_tokens=50)))
        for _ in range(300)
    ]
    await asyncio.sleep(0)
    await policy.close()
    await policy.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, Completion | PolicyError) for outcome in outcomes)
    assert any(isinstance(outcome, PolicyError) for outcome in outcomes)
    with pytest.raises(PolicyError, match="closed"):
        await policy.complete(ask("sum"), Sampling())


async def test_a_cancelled_call_gives_its_place_back(directory: Path) -> None:
    policy = HFPolicy(directory, max_rows=1)
    try:
        first = asyncio.ensure_future(policy.complete(ask("sum"), Sampling(max_tokens=50)))
        await asyncio.sleep(0)
        first.cancel()
        second = await asyncio.wait_for(policy.complete(ask("1"), Sampling(max_tokens=3)), 20)
        assert second.output_ids
    finally:
        await policy.close()


async def test_a_broken_batch_fails_its_callers_only(
    policy: HFPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Lane) -> list[Request]:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Lane, "advance", broken)
        with pytest.raises(PolicyError, match="out of memory"):
            await policy.complete(ask("sum"), Sampling(max_tokens=3))
    assert (await policy.complete(ask("sum"), Sampling(max_tokens=3))).output_ids


class ScriptedRows:
    """Rows whose next token is given: -1 stands for a token that does not stop."""

    def __init__(self, script: Sequence[Sequence[int]]) -> None:
        self._script = [list(tokens) for tokens in script]
        self._done = [0] * len(script)

    def add(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        return self._logits()

    def step(self, tokens_N: torch.Tensor) -> torch.Tensor:
        self._done = [done + 1 for done in self._done]
        return self._logits()

    def drop(self, rows: Sequence[int]) -> None:
        order = survivors(len(self._script), rows)
        self._script = [self._script[row] for row in order]
        self._done = [self._done[row] for row in order]

    def _logits(self) -> torch.Tensor:
        tokens = [tokens[done] for tokens, done in zip(self._script, self._done, strict=True)]
        return torch.nn.functional.one_hot(torch.tensor(tokens), 4).float() * 100


async def test_endings_of_case_41() -> None:
    """What was cut by the window is `length`, what stopped on its last token is not."""
    window, longest, stop, word = CASE_41["max_model_len"], CASE_41["max_response_len"], 3, 1
    loop = asyncio.get_running_loop()
    requests, script = [], []
    for response in CASE_41["responses"]:
        room = min(longest, window - response["prompt"])
        last = stop if response["finish"] == "stop" else word
        script.append([word] * (response["generated"] - 1) + [last])
        requests.append(Request([0] * response["prompt"], room, 0.0, 1.0, 0, loop.create_future()))
    lane = Lane(ScriptedRows(script), 0, frozenset({stop}))
    lane.add(requests)
    done: list[Request] = []
    while lane.requests:
        done += lane.advance()
    assert len(done) == len(requests)
    for request, response in zip(requests, CASE_41["responses"], strict=True):
        assert len(request.output_ids) == response["generated"]
        assert ("stop" if request.stopped else "length") == response["finish"]
    cut = sum(not request.stopped for request in requests)
    assert f"{cut}/{len(requests)}" == "3/5"


async def test_models_of_transformers_run_out_before_a_switch(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    directory = tiny_directory(tmp_path / "gpt2")
    vocabulary = json.loads((directory / "config.json").read_text())["vocab_size"]
    sizes = {"vocab_size": vocabulary, "n_positions": 48, "n_embd": 16, "n_layer": 1, "n_head": 2}
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(directory)
    policy = HFPolicy(directory)
    try:
        model = load_model(directory)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        sampling = Sampling(max_tokens=30, seed=1)
        first = asyncio.ensure_future(policy.complete(ask("sum"), sampling))
        await first_token(policy)
        await policy.load(weights_bytes(model), 1)
        second = await policy.complete(ask("sum"), sampling)
        old = await first
        assert [old.versions[0].version, second.versions[0].version] == [0, 1]
        expected = exact_logprobs(directory, old)
        assert list(old.logprobs or ()) == pytest.approx(expected, abs=1e-4)
    finally:
        await policy.close()


async def test_gathered_requests_are_decoded_together(directory: Path) -> None:
    joined: list[int] = []

    def add(lane: Lane, requests: Sequence[Request]) -> None:
        joined.append(len(requests))
        plain_add(lane, requests)

    plain_add = Lane.add
    policy = HFPolicy(directory, gather_s=0.3)
    try:
        with patch.object(Lane, "add", add):
            calls = []
            for text in ("a", "b", "c"):
                calls.append(asyncio.ensure_future(policy.complete(ask(text), Sampling())))
                await asyncio.sleep(0.01)
            await asyncio.gather(*calls)
    finally:
        await policy.close()
    assert joined == [3]
