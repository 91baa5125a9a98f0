"""Trajectories: the immutable, token-exact record of one rollout."""

from dataclasses import dataclass
from enum import StrEnum

from trialyard.core.grader import Verdict
from trialyard.core.policy import VersionSpan

SCHEMA_VERSION = 1


class StopReason(StrEnum):
    """Why a rollout ended."""

    SOLVED = "solved"
    """All visible checks passed, or the agent submitted."""
    TURNS = "turns"
    """The turn budget was used up."""
    TOKENS = "tokens"
    """The token budget was used up."""
    TIME = "time"
    """The agent's time ran out."""
    CONTEXT = "context"
    """The conversation no longer fits the policy's context window."""
    ENVIRONMENT = "environment"
    """The machine failed and retries were used up; the verdict is ungraded."""
    POLICY = "policy"
    """The policy gave no answer and retries were used up; the verdict is ungraded."""


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """One command that a turn ran in the box (output truncated for the record)."""

    argv: tuple[str, ...]
    status: str
    exit_code: int | None
    wall_s: float
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion and the observation that it caused.

    `context_ids` are the tokens that were new in the prompt since the end of the
    previous turn (for the first turn the whole prompt), so that the sequence
    ``context_ids[0] output_ids[0] context_ids[1] ...`` is exactly what the policy saw.
    Where a prompt does not continue the sequence before it (the agent edited its
    history), the turn starts a `branch` and `context_ids` is its whole prompt.
    """

    context: str
    context_ids: tuple[int, ...]
    output: str
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[VersionSpan, ...]
    finish: str
    observation: str = ""
    commands: tuple[CommandRecord, ...] = ()
    reward: float | None = None
    policy_s: float = 0.0
    sandbox_s: float = 0.0
    branch: bool = False


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one rollout. `id` is also its exactly-once key."""

    id: str
    run: str
    group: str
    member: int
    attempt: int
    task_id: str
    task_hash: str
    image_digest: str
    seed: int
    turns: tuple[Turn, ...]
    stop: StopReason
    verdict: Verdict
    diff: bytes = b""
    """The submission as `trialyard.core.plain` encodes it, so that it can be graded again."""
    faults: tuple[str, ...] = ()
    """What went wrong in earlier attempts, oldest first."""
    penalty: float = 0.0
    """What shaping takes off the verdict's reward (turn penalty of the task)."""
    started_s: float = 0.0
    wall_s: float = 0.0
    schema_version: int = SCHEMA_VERSION

    @property
    def reward(self) -> float | None:
        """Reward used in training: the verdict's less `penalty`, at least 0; None if ungraded."""
        if self.verdict.reward is None:
            return None
        return max(0.0, self.verdict.reward - self.penalty)

    @property
    def num_output_tokens(self) -> int:
        return sum(len(turn.output_ids) for turn in self.turns)

    @property
    def oldest_version(self) -> int | None:
        """Smallest policy version among the sampled tokens; None without tokens."""
        versions = [span.version for turn in self.turns for span in turn.versions]
        return min(versions, default=None)


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories of one task sampled with the same settings, in member order."""

    id: str
    task_id: str
    task_hash: str
    trajectories: tuple[Trajectory, ...]

    @property
    def graded(self) -> tuple[Trajectory, ...]:
        """Members that may enter mean, deviation, size and loss."""
        return tuple(t for t in self.trajectories if t.reward is not None)

    @property
    def oldest_version(self) -> int | None:
        versions = [t.oldest_version for t in self.graded]
        return min((v for v in versions if v is not None), default=None)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An example episode for supervised learning: what was new in a turn, what was answered."""

    task_id: str
    turns: tuple[tuple[str, str], ...]
