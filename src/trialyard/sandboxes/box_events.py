"""What happens to the boxes of a pool, told to whoever observes it (metrics, the box log).

Values that may be secret never enter an event: of an environment only the names, of stdin
and files only the sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trialyard.core.network import NetworkAttempt
from trialyard.core.sandbox import ExecResult, Limits

Via = Literal["run", "start", "shell"]
"""How a command was asked for; the argv of one in a shell is its text."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A claim got no boxes in time."""

    owner: str
    count: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class BoxStarted:
    box: str
    image: str
    start_s: float


@dataclass(frozen=True, slots=True)
class BoxLeased:
    box: str
    owner: str
    image: str
    limits: Limits
    workdir: str
    waited_s: float
    """From the call of `acquire` until the box was there."""
    ttl_s: float


@dataclass(frozen=True, slots=True)
class CommandEnded:
    box: str
    owner: str
    via: Via
    argv: tuple[str, ...]
    env: tuple[str, ...]
    """Names alone."""
    cwd: str | None
    stdin_bytes: int
    duration_s: float
    result: ExecResult | None
    """None when the caller got an error instead."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class FileOperation:
    box: str
    owner: str
    operation: str
    path: str
    files: int = 1
    size_bytes: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class NetworkTried:
    """The box tried to reach something; told at its end."""

    box: str
    owner: str
    attempt: NetworkAttempt


@dataclass(frozen=True, slots=True)
class BoxEnded:
    """A leased box was given back, or lost."""

    box: str
    owner: str
    leased_s: float
    lost: bool
    leaked: bool


BoxEvent = Refused | BoxStarted | BoxLeased | CommandEnded | FileOperation | NetworkTried | BoxEnded
Observer = Callable[[BoxEvent], None]
"""Called in the pool's event loop: short, and never raising."""
