"""A lane: requests that are decoded together under one policy version.

A request stays in the lane that it started in, so all tokens of a completion come from
one version: new weights open a new lane while the old one runs out. A lane belongs to
the thread that advances it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trialyard.policies.hf_rows import Rows, survivors
from trialyard.policies.hf_sample import sample, uniforms


@dataclass(slots=True)
class Request:
    """One completion on its way."""

    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    future: "asyncio.Future[Request]"
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: int = -1
    stopped: bool = False
    error: Exception | None = None
    uniforms: list[float] = field(default_factory=list)

    def take(self, token: int, logprob: float, stop_ids: frozenset[int]) -> bool:
        """Add one sampled token; True when the request needs no more of them."""
        self.output_ids.append(token)
        self.logprobs.append(logprob)
        self.stopped = token in stop_ids
        full = len(self.output_ids) >= self.max_tokens
        return self.stopped or full or self.future.cancelled()


class Lane:
    """Requests in row order, and the logits of each one's next token."""

    def __init__(self, rows: Rows, version: int, stop_ids: frozenset[int]) -> None:
        self.version = version
        self._rows = rows
        self._stop_ids = stop_ids
        self.requests: list[Request] = []
        self._logits_NV = torch.empty(0)
        self._temperatures_N = torch.empty(0)
        self._top_p_N = torch.empty(0)

    def add(self, requests: Sequence[Request]) -> None:
        """Let requests join: their prompts are read, nothing is sampled yet."""
        logits_MV = self._rows.add([request.prompt_ids for request in requests])
        for request in requests:
            request.version = self.version
            request.uniforms = uniforms(request.seed, request.max_tokens)
        had = bool(self.requests)
        self._logits_NV = torch.cat((self._logits_NV, logits_MV)) if had else logits_MV
        self.requests += requests
        self._set_sampling()

    def advance(self) -> list[Request]:
        """Sample one token for every request; return those that are done."""
        drawn = [request.uniforms[len(request.output_ids)] for request in self.requests]
        device = self._logits_NV.device
        tokens_N, logprobs_N = sample(
            self._logits_NV,
            self._temperatures_N,
            self._top_p_N,
            torch.tensor(drawn, device=device),
        )
        ended = [
            row
            for row, (request, token, logprob) in enumerate(
                zip(self.requests, tokens_N.tolist(), logprobs_N.tolist(), strict=True)
            )
            if request.take(token, logprob, self._stop_ids)
        ]
        done = [self.requests[row] for row in ended]
        if ended:
            tokens_N = self._drop(ended, tokens_N)
        if self.requests:
            self._logits_NV = self._rows.step(tokens_N)
        return done

    def _drop(self, ended: Sequence[int], tokens_N: Tensor) -> Tensor:
        order = survivors(len(self.requests), ended)
        self._rows.drop(ended)
        self.requests = [self.requests[row] for row in order]
        self._set_sampling()
        return tokens_N[order]

    def _set_sampling(self) -> None:
        device = self._logits_NV.device
        self._temperatures_N = torch.tensor(
            [request.temperature for request in self.requests], device=device
        )
        self._top_p_N = torch.tensor([request.top_p for request in self.requests], device=device)
