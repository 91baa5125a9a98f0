"""Policies: what turns messages into a completion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field

from trialyard.core.record import Record


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    `token_ids` are the tokens as sampled (assistant) or as rendered earlier; a policy
    that works on tokens uses them verbatim, so that nothing is ever re-tokenised.
    """

    role: Literal["system", "user", "assistant"]
    content: str
    token_ids: tuple[int, ...] | None = None


class Sampling(Record):
    """Sampling settings. `temperature` 0 is greedy; `seed` makes a policy repeatable."""

    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=2048, ge=1)
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """`num_tokens` consecutive sampled tokens came from policy `version`."""

    version: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy said. Token fields are None when the policy cannot give them.

    `prompt_ids` is the whole prompt as the policy saw it; `logprobs` are those of the
    distribution that was really sampled from (after temperature and top-p).
    """

    text: str
    finish: Literal["stop", "length"]
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    versions: tuple[VersionSpan, ...] = ()
    duration_s: float = 0.0


class Policy(Protocol):
    """Anything that turns messages into a completion. Many calls may be in flight."""

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """One completion.

        Raises `ContextOverflow` when the conversation is too long and `PolicyError`
        when no answer could be had.
        """

    async def close(self) -> None:
        """Free what the policy holds. Idempotent."""


class TrainablePolicy(Policy, Protocol):
    """A policy whose weights can be replaced while rollouts run."""

    @property
    def version(self) -> int:
        """Version of the weights that the next token will be sampled from."""

    async def load(self, weights: bytes, version: int) -> None:
        """Switch to new weights (safetensors) between two decoding calls."""
