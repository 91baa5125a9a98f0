"""Tools: what an agent of ours can do in a box, and how it says so in plain text.

A tool turns one completion into an observation. Two protocols, simple enough for a
tiny policy and documented in their opening message:

- ``answer``: the completion is the whole answer file; visible checks run on it.
- ``shell``: fenced blocks; ``bash`` runs a command, ``file PATH`` writes a file,
  ``submit`` ends the episode.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trialyard.core.outcome import CaseOutcome
from trialyard.core.sandbox import Sandbox
from trialyard.core.task import Check, Task
from trialyard.core.trajectory import CommandRecord

CheckRunner = Callable[[Task, Check, Sandbox], Awaitable[Sequence[CaseOutcome]]]
"""Runs one visible check on the agent's own box."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees next. `done` ends the episode."""

    text: str
    done: bool = False
    commands: tuple[CommandRecord, ...] = ()


class Tool(Protocol):
    """One way of working on a task; made fresh for every episode."""

    def opening(self, task: Task) -> str:
        """First message to the policy."""

    async def act(self, task: Task, sandbox: Sandbox, output: str) -> Observation:
        """Do what the completion asks for. Raises `SandboxError` only for the machine."""

    async def submission(self, task: Task, sandbox: Sandbox) -> dict[str, bytes | None]:
        """Changed files, relative to the workdir; None means removed."""
