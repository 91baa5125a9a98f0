"""What every policy promises, and what trainable ones promise besides."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.models import tiny_directory
from trialyard.core.errors import ContextOverflow, PolicyError
from trialyard.core.policy import Completion, Message, Policy, Sampling, TrainablePolicy
from trialyard.policies.hf import HFPolicy
from trialyard.policies.hf_process import ProcessPolicy
from trialyard.policies.openai import OpenAIPolicy
from trialyard.policies.scripted import ScriptedPolicy
from trialyard.testing.policy import FakePolicy

LONG = "sum of list " * 5000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_directory(tmp_path_factory.mktemp("model"), max_positions=128)


async def chat_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that answers everything shorter than its context with two tokens."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            body = json.loads(await reader.readexactly(length))
            size = sum(len(message["content"]) for message in body["messages"])
            status, answer = 200, {
                "choices": [
                    {
                        "message": {"content": "two"},
                        "finish_reason": "length" if body["max_tokens"] < 2 else "stop",
                        "token_ids": [7, 8][: body["max_tokens"]],
                        "logprobs": {"content": [{"logprob": -0.5}] * min(2, body["max_tokens"])},
                    }
                ],
                "prompt_token_ids": [1, 2, 3],
            }  # fmt: skip
            if size > 1000:
                status, answer = 400, {"error": "This model's maximum context length is 1000"}
            data = json.dumps(answer).encode()
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n".encode())
            writer.write(data)
    except asyncio.IncompleteReadError:
        pass
    finally:
        writer.close()


@pytest.fixture(params=["scripted", "hf", "process", "openai", "fake"])
async def policy(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Policy]:
    made: Policy
    async with await asyncio.start_server(chat_server, "127.0.0.1", 0) as server:
        if request.param == "scripted":
            made = ScriptedPolicy(["first", "then"])
        elif request.param == "hf":
            made = HFPolicy(directory)
        elif request.param == "process":
            made = ProcessPolicy(directory)
        elif request.param == "fake":
            made = FakePolicy(lambda messages, sampling: f"turn {len(messages)}")
        else:
            port = server.sockets[0].getsockname()[1]
            made = OpenAIPolicy(f"http://127.0.0.1:{port}/v1", "m", version=0)
        yield made
        await made.close()


@pytest.fixture(params=["hf", "process", "fake"])
async def trainable(
    request: pytest.FixtureRequest, directory: Path
) -> AsyncIterator[TrainablePolicy]:
    made: TrainablePolicy
    if request.param == "hf":
        made = HFPolicy(directory)
    elif request.param == "process":
        made = ProcessPolicy(directory)
    else:
        made = FakePolicy(lambda messages, sampling: "say " * 20)
    yield made
    await made.close()


def ask(text: str = "sum of list") -> list[Message]:
    return [Message("user", text)]


def check_tokens(completion: Completion) -> None:
    """Token fields are there together and agree with each other."""
    if completion.output_ids is None:
        assert completion.logprobs is None
        assert completion.versions == ()
        return
    assert completion.prompt_ids
    assert completion.output_ids
    if completion.logprobs is not None:
        assert len(completion.logprobs) == len(completion.output_ids)
        assert all(logprob <= 0 for logprob in completion.logprobs)
    assert sum(span.num_tokens for span in completion.versions) == len(completion.output_ids)


async def test_a_completion_is_whole(policy: Policy) -> None:
    completion = await policy.complete(ask(), Sampling(max_tokens=8, seed=1))
    assert isinstance(completion.text, str)
    assert completion.finish in ("stop", "length")
    assert completion.duration_s >= 0
    check_tokens(completion)


async def test_the_token_budget_holds(policy: Policy) -> None:
    completion = await policy.complete(ask(), Sampling(max_tokens=1, seed=1))
    check_tokens(completion)
    assert completion.output_ids is None or len(completion.output_ids) == 1


async def test_many_calls_at_once(policy: Policy) -> None:
    completions = await asyncio.gather(
        *(policy.complete(ask(), Sampling(max_tokens=5, seed=seed)) for seed in range(50))
    )
    assert len(completions) == 50
    for completion in completions:
        check_tokens(completion)


async def test_turns_continue(policy: Policy) -> None:
    messages = ask()
    for _ in range(3):
        completion = await policy.complete(messages, Sampling(max_tokens=4, seed=2))
        check_tokens(completion)
        spoken = Message("assistant", completion.text, completion.output_ids)
        messages = [*messages, spoken, *ask("1")]


async def test_a_conversation_too_long_is_an_overflow(policy: Policy) -> None:
    if isinstance(policy, ScriptedPolicy):
        assert (await policy.complete(ask(LONG), Sampling())).text == "first"
        return
    with pytest.raises(ContextOverflow):
        await policy.complete(ask(LONG), Sampling())
    check_tokens(await policy.complete(ask(), Sampling(max_tokens=4)))


async def test_close_is_final_and_may_be_repeated(policy: Policy) -> None:
    await policy.close()
    await policy.close()
    with pytest.raises(PolicyError):
        await policy.complete(ask(), Sampling())


async def test_a_rollout_has_one_token_sequence(trainable: TrainablePolicy) -> None:
    messages = ask()
    seen: tuple[int, ...] = ()
    for turn in range(3):
        completion = await trainable.complete(messages, Sampling(max_tokens=6, seed=turn))
        assert (completion.prompt_ids or ())[: len(seen)] == seen
        seen = (*(completion.prompt_ids or ()), *(completion.output_ids or ()))
        spoken = Message("assistant", completion.text, completion.output_ids)
        messages = [*messages, spoken, *ask("1")]


async def test_versions_follow_loads(trainable: TrainablePolicy, tmp_path: Path) -> None:
    weights = (
        tiny_directory(tmp_path, max_positions=128, seed=4) / "model.safetensors"
    ).read_bytes()
    sampling = Sampling(max_tokens=4, seed=0)
    before = await trainable.complete(ask(), sampling)
    assert {span.version for span in before.versions} == {trainable.version} == {0}
    await trainable.load(weights, 5)
    assert trainable.version == 5
    after = await trainable.complete(ask(), sampling)
    assert {span.version for span in after.versions} == {5}


async def test_seeds_repeat(trainable: TrainablePolicy) -> None:
    sampling = Sampling(max_tokens=8, seed=12)
    first = await trainable.complete(ask(), sampling)
    again = await trainable.complete(ask(), sampling)
    assert (first.output_ids, first.logprobs) == (again.output_ids, again.logprobs)


async def test_a_scripted_policy_speaks_by_turn_and_repeats_the_last() -> None:
    policy = ScriptedPolicy(["one", "two"])
    messages = ask()
    said = []
    for _ in range(3):
        completion = await policy.complete(messages, Sampling())
        said.append(completion.text)
        messages = [*messages, Message("assistant", completion.text), *ask()]
    assert said == ["one", "two", "two"]


async def test_faults_of_the_fake_come_first() -> None:
    policy = FakePolicy(lambda messages, sampling: "ok", faults=[PolicyError("down")])
    with pytest.raises(PolicyError, match="down"):
        await policy.complete(ask(), Sampling())
    assert (await policy.complete(ask(), Sampling())).text == "ok"
