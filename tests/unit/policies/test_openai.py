"""OpenAIPolicy against a real HTTP server on the loopback interface."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from trialyard.core.errors import ContextOverflow, PolicyError
from trialyard.core.policy import Message, Sampling, VersionSpan
from trialyard.policies.openai import OpenAIPolicy

Reply = tuple[int, dict[str, Any] | str] | tuple[int, dict[str, Any] | str, dict[str, str]] | None
Answer = Callable[[dict[str, Any]], Reply]
ASK = [Message("system", "be brief"), Message("user", "hello")]


class StillClock:
    """Time stands still; what would have been slept is kept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic_s(self) -> float:
        return 0.0

    def wall_s(self) -> float:
        return 0.0

    async def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)


class ChatServer:
    """A small HTTP/1.1 server; `answers` are given in order, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                self.requests.append((first, headers, body))
                answer = self.answers[min(len(self.requests), len(self.answers)) - 1](body)
                if answer is None:
                    break
                status, content = answer[:2]
                extra = answer[2] if len(answer) == 3 else {}
                data = (content if isinstance(content, str) else json.dumps(content)).encode()
                more = "".join(f"{name}: {value}\r\n" for name, value in extra.items())
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n{more}\r\n".encode()
                )
                writer.write(data)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[ChatServer]:
    server = ChatServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    async with listening:
        yield server
        listening.close()


@pytest.fixture
async def clock() -> StillClock:
    return StillClock()


@pytest.fixture
async def policy(server: ChatServer, clock: StillClock) -> AsyncIterator[OpenAIPolicy]:
    policy = OpenAIPolicy(
        server.url, "small", api_key="key", version=3, clock=clock, max_attempts=4
    )
    yield policy
    await policy.close()


def said(text: str | None, finish: str = "stop", **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "finish_reason": finish, **choice}]}


def scored(*logprobs: float | None) -> dict[str, Any]:
    return {"content": [{"token": "x", "logprob": logprob} for logprob in logprobs]}


async def test_the_request_and_an_answer_with_tokens(
    server: ChatServer, policy: OpenAIPolicy
) -> None:
    full = said("hi", token_ids=[5, 6], logprobs=scored(-0.5, None)) | {"prompt_token_ids": [1, 2]}
    server.answers = [lambda body: (200, full)]
    answer = await policy.complete(ASK, Sampling(max_tokens=7, seed=11))
    first, headers, body = server.requests[0]
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert headers["authorization"] == "Bearer key"
    assert body == {
        "model": "small",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
        ],
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 7,
        "logprobs": True,
        "return_token_ids": True,
        "seed": 11,
    }
    assert (answer.text, answer.finish) == ("hi", "stop")
    assert (answer.prompt_ids, answer.output_ids) == ((1, 2), (5, 6))
    assert answer.logprobs is not None
    assert answer.logprobs[0] == -0.5
    assert math.isnan(answer.logprobs[1])
    assert answer.versions == (VersionSpan(3, 2),)


async def test_a_server_without_tokens_is_enough(server: ChatServer, policy: OpenAIPolicy) -> None:
    server.answers = [lambda body: (200, said("cut", "length", logprobs=None))]
    answer = await policy.complete(ASK, Sampling())
    assert (answer.text, answer.finish) == ("cut", "length")
    assert answer.prompt_ids is answer.output_ids is answer.logprobs is None
    assert answer.versions == ()


async def test_logprobs_of_another_distribution_are_not_passed_on(
    server: ChatServer, policy: OpenAIPolicy
) -> None:
    server.answers = [lambda body: (200, said("hi", token_ids=[5], logprobs=scored(-0.5)))]
    for sampling in (Sampling(temperature=0.5), Sampling(top_p=0.9), Sampling(temperature=0)):
        answer = await policy.complete(ASK, sampling)
        assert answer.output_ids == (5,)
        assert answer.logprobs is None


async def test_logprobs_that_do_not_match_the_tokens_are_dropped(
    server: ChatServer, policy: OpenAIPolicy
) -> None:
    server.answers = [lambda body: (200, said("hi", token_ids=[5, 6], logprobs=scored(-0.5)))]
    assert (await policy.complete(ASK, Sampling())).logprobs is None


async def test_refused_optional_fields_are_not_sent_again(
    server: ChatServer, policy: OpenAIPolicy
) -> None:
    def strict(body: dict[str, Any]) -> Reply:
        for name in ("return_token_ids", "logprobs"):
            if name in body:
                return 400, {"error": {"message": f"Unrecognized request argument: {name}"}}
        if "max_tokens" in body:
            return 400, {"error": {"message": "use max_completion_tokens instead of max_tokens"}}
        return 200, said("ok")

    server.answers = [strict]
    assert (await policy.complete(ASK, Sampling(max_tokens=9))).text == "ok"
    assert len(server.requests) == 4
    assert (await policy.complete(ASK, Sampling(max_tokens=9))).text == "ok"
    assert len(server.requests) == 5
    assert server.requests[-1][2]["max_completion_tokens"] == 9


@pytest.mark.parametrize("trouble", [429, 500, 503, None], ids=str)
async def test_busy_and_broken_servers_are_tried_again(
    server: ChatServer, policy: OpenAIPolicy, clock: StillClock, trouble: int | None
) -> None:
    failing: Answer = lambda body: None if trouble is None else (trouble, "busy")  # noqa: E731
    server.answers = [failing, failing, lambda body: (200, said("at last"))]
    assert (await policy.complete(ASK, Sampling())).text == "at last"
    assert len(clock.slept) == 2
    assert 0 < clock.slept[0] <= 0.5
    assert clock.slept[1] <= 1.0


async def test_retries_end_with_the_cause(
    server: ChatServer, policy: OpenAIPolicy, clock: StillClock
) -> None:
    server.answers = [lambda body: (503, "overloaded")]
    with pytest.raises(PolicyError, match=r"4 attempts.*503.*overloaded"):
        await policy.complete(ASK, Sampling())
    assert len(server.requests) == 4
    assert len(clock.slept) == 3


async def test_nobody_listening_is_a_policy_error(clock: StillClock) -> None:
    free = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = free.sockets[0].getsockname()[1]
    free.close()
    await free.wait_closed()
    policy = OpenAIPolicy(f"http://127.0.0.1:{port}/v1", "m", clock=clock, max_attempts=2)
    with pytest.raises(PolicyError, match="2 attempts") as caught:
        await policy.complete(ASK, Sampling())
    assert caught.value.__cause__ is not None
    await policy.close()


async def test_a_retry_after_is_heeded_within_bounds(
    server: ChatServer, policy: OpenAIPolicy, clock: StillClock
) -> None:
    server.answers = [
        lambda body: (429, "slow down", {"retry-after": "7"}),
        lambda body: (429, "slow down", {"retry-after": "86400"}),
        lambda body: (200, said("ok")),
    ]
    await policy.complete(ASK, Sampling())
    assert clock.slept == [7.0, 30.0]


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, your messages resulted in"
        " 9000 tokens.",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "the request exceeds the available context size, try increasing it",
    ],
)
async def test_a_conversation_too_long_is_a_context_overflow(
    server: ChatServer, policy: OpenAIPolicy, message: str
) -> None:
    server.answers = [lambda body: (400, {"error": {"message": message}})]
    with pytest.raises(ContextOverflow):
        await policy.complete(ASK, Sampling())
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 100 tokens. However, you requested 2108 tokens"
        " (60 in the messages, 2048 in the completion).",
        "'max_tokens' or 'max_completion_tokens' is too large: 2048. This model's maximum context"
        " length is 100 tokens and your request has 60 input tokens (2048 > 100 - 60).",
    ],
)
async def test_a_budget_larger_than_the_room_is_cut_to_it(
    server: ChatServer, policy: OpenAIPolicy, message: str
) -> None:
    server.answers = [
        lambda body: (400, {"error": {"message": message}}),
        lambda body: (200, said("ok", "length")),
    ]
    assert (await policy.complete(ASK, Sampling(max_tokens=2048))).finish == "length"
    assert server.requests[-1][2]["max_tokens"] == 40


@pytest.mark.parametrize("reply", ["<html>", "[]", {"choices": []}, {"error": "x"}], ids=str)
async def test_nonsense_is_a_policy_error(
    server: ChatServer, policy: OpenAIPolicy, reply: dict[str, Any] | str
) -> None:
    server.answers = [lambda body: (200, reply)]
    with pytest.raises(PolicyError, match="OpenAI-compatible"):
        await policy.complete(ASK, Sampling())


@pytest.mark.parametrize(("status", "hint"), [(401, "API key"), (404, "base URL")])
async def test_refusals_say_what_to_do(
    server: ChatServer, policy: OpenAIPolicy, status: int, hint: str
) -> None:
    server.answers = [lambda body: (status, "no")]
    with pytest.raises(PolicyError, match=hint):
        await policy.complete(ASK, Sampling())
    assert len(server.requests) == 1


async def test_an_empty_answer_is_an_answer(server: ChatServer, policy: OpenAIPolicy) -> None:
    server.answers = [lambda body: (200, said(None, "tool_calls"))]
    answer = await policy.complete(ASK, Sampling())
    assert (answer.text, answer.finish) == ("", "stop")


async def test_a_closed_policy_says_so(server: ChatServer, policy: OpenAIPolicy) -> None:
    await policy.close()
    await policy.close()
    with pytest.raises(PolicyError, match="closed"):
        await policy.complete(ASK, Sampling())
