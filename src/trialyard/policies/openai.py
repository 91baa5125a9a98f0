"""Any OpenAI-compatible chat server as a policy.

Asks for log-probabilities and token ids (vLLM and SGLang give them) and works without:
a server that refuses an optional field is not sent it again. Busy servers and broken
connections are retried with backoff, a bounded number of times; every failure that is
left is a `PolicyError` that names the server's answer.

Servers report log-probabilities before temperature and top-p, so they are kept only
where that is the distribution sampled from (both 1). Messages go as text: the server
tokenises the history anew.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from trialyard.core.clock import Clock, SystemClock
from trialyard.core.errors import ContextOverflow, PolicyError
from trialyard.core.policy import Completion, Message, Sampling, VersionSpan

OPTIONAL_FIELDS = ("return_token_ids", "logprobs", "seed", "top_p")
BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0

_TOO_LONG = re.compile(r"context[ _](length|window|size)|maximum model length", re.IGNORECASE)
_CONTEXT = re.compile(r"context length (?:is|of) (\d+)", re.IGNORECASE)
_PROMPT = re.compile(r"(\d+) (?:in the messages|input tokens)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A 4xx answer that retrying as it was cannot change."""

    status: int
    text: str


class OpenAIPolicy:
    """Implements `Policy` over ``POST {base_url}/chat/completions``.

    `base_url` goes up to ``/v1``. `version` is stamped on the tokens when the server
    gives their ids; None leaves completions without a version.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        max_attempts: int = 6,
        version: int | None = None,
        clock: Clock | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        self._max_attempts = max_attempts
        self._version = version
        self._clock = clock or SystemClock()
        self._jitter = jitter or random.Random()
        self._refused: set[str] = set()
        self._limit_field = "max_tokens"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=min(10.0, timeout_s)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        )

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        started_s = self._clock.monotonic_s()
        max_tokens = sampling.max_tokens
        while True:
            body = self._body(messages, sampling, max_tokens)
            answer = await self._post(body)
            if not isinstance(answer, Refusal):
                duration_s = self._clock.monotonic_s() - started_s
                return self._completion(answer, sampling, duration_s)
            if self._learn_from(answer, body):
                continue
            room = _room(answer.text)
            if room is None or not 0 < room < max_tokens:
                raise self._error(answer)
            max_tokens = room

    async def close(self) -> None:
        await self._client.aclose()

    def _body(
        self, messages: Sequence[Message], sampling: Sampling, max_tokens: int
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": m.role, "content": m.content} for m in messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._limit_field: max_tokens,
            "logprobs": True,
            "return_token_ids": True,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        return {name: value for name, value in body.items() if name not in self._refused}

    async def _post(self, body: dict[str, Any]) -> dict[str, Any] | Refusal:
        """The server's JSON answer or refusal; busy and broken servers are tried again."""
        last: Exception | None = None
        for attempt in range(self._max_attempts):
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
            pause_s *= 0.5 + 0.5 * self._jitter.random()
            try:
                response = await self._client.post(self._url, json=body)
            except httpx.TransportError as error:
                last, reason = error, f"{type(error).__name__}: {error}"
            except RuntimeError as error:
                raise PolicyError("the policy is closed; make a new one") from error
            else:
                if response.status_code not in BUSY:
                    return self._read(response)
                last, reason = None, f"HTTP {response.status_code}: {response.text[:200]}"
                pause_s = _retry_after(response, pause_s)
            if attempt + 1 < self._max_attempts:
                await self._clock.sleep(pause_s)
        raise PolicyError(
            f"no answer from {self._url} in {self._max_attempts} attempts; the last: {reason};"
            " check that the server is up and not overloaded"
        ) from last

    def _read(self, response: httpx.Response) -> dict[str, Any] | Refusal:
        if response.status_code >= 400:
            return Refusal(response.status_code, response.text)
        try:
            answer = response.json()
        except ValueError as error:
            raise self._bad_reply(response.text, "is not JSON") from error
        if not isinstance(answer, dict):
            raise self._bad_reply(response.text, "is not an object")
        return answer

    def _learn_from(self, refusal: Refusal, body: dict[str, Any]) -> bool:
        """Give up an optional field that the server does not take; True to try again."""
        if refusal.status not in (400, 422) or _TOO_LONG.search(refusal.text):
            return False
        if "max_completion_tokens" in refusal.text and self._limit_field in body:
            changed = self._limit_field != "max_completion_tokens"
            self._limit_field = "max_completion_tokens"
            return changed
        named = {name for name in OPTIONAL_FIELDS if name in body and name in refusal.text}
        self._refused |= named
        return bool(named)

    def _error(self, refusal: Refusal) -> PolicyError:
        if refusal.status == 413 or _TOO_LONG.search(refusal.text):
            return ContextOverflow(f"the conversation does not fit: {refusal.text[:300]}")
        hint = {
            401: "; pass a valid API key",
            403: "; the API key may not use this model",
            404: f"; check the base URL (it ends in /v1) and the model name {self._model!r}",
        }.get(refusal.status, "")
        return PolicyError(f"{self._url} answered {refusal.status}: {refusal.text[:300]}{hint}")

    def _bad_reply(self, text: str, what: str) -> PolicyError:
        return PolicyError(
            f"the reply of {self._url} {what}: {text[:200]!r}; is this an OpenAI-compatible server?"
        )

    def _completion(
        self, answer: dict[str, Any], sampling: Sampling, duration_s: float
    ) -> Completion:
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"] or ""
        except (KeyError, IndexError, TypeError) as error:
            raise self._bad_reply(str(answer), "has no choices[0].message.content") from error
        output_ids = _token_ids(choice.get("token_ids"))
        prompt_ids = _token_ids(answer.get("prompt_token_ids", choice.get("prompt_token_ids")))
        logprobs = None
        if output_ids is not None and sampling.temperature == sampling.top_p == 1.0:
            logprobs = _logprobs(choice, len(output_ids))
        versioned = output_ids is not None and self._version is not None
        return Completion(
            text=str(text),
            finish="length" if choice.get("finish_reason") == "length" else "stop",
            prompt_ids=prompt_ids,
            output_ids=output_ids,
            logprobs=logprobs,
            versions=(VersionSpan(self._version or 0, len(output_ids or ())),) if versioned else (),
            duration_s=duration_s,
        )


def _token_ids(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(isinstance(token, int) for token in value):
        return tuple(value)
    return None


def _logprobs(choice: dict[str, Any], count: int) -> tuple[float, ...] | None:
    """Log-probabilities of all tokens; NaN where the server has none for one of them."""
    content = (choice.get("logprobs") or {}).get("content") or []
    values = [entry.get("logprob") for entry in content if isinstance(entry, dict)]
    if len(values) != count:
        return None
    return tuple(float(value) if isinstance(value, int | float) else math.nan for value in values)


def _room(text: str) -> int | None:
    """Tokens left for the answer, when a refusal names context length and prompt length."""
    context, prompt = _CONTEXT.search(text), _PROMPT.search(text)
    return int(context[1]) - int(prompt[1]) if context and prompt else None


def _retry_after(response: httpx.Response, pause_s: float) -> float:
    """The pause that the server asks for, within bounds, else ours."""
    try:
        asked_s = float(response.headers.get("retry-after", ""))
    except ValueError:
        return pause_s
    return min(max(asked_s, 0.0), LONGEST_PAUSE_S)
