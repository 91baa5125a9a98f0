"""Tasks: an immutable problem, its checks, and the rubric that combines them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from trialyard.core.ids import content_hash, tree_hash
from trialyard.core.record import Record
from trialyard.core.sandbox import Limits

Split = Literal["train", "valid", "test"]


class CheckBase(Record):
    """What every check has. `weight` 0 makes it a pure gate or a report."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    weight: float = Field(default=1.0, ge=0, le=1e6)
    required: bool = False
    group: str = ""
    visible: bool = False
    """Run on the agent's own box to make feedback; never counts for the reward."""


class ValuesCheck(CheckBase):
    """Call `function` of `file` with given arguments; compare the values outside.

    `cases` names a JSON file below ``tests/`` (or ``environment/`` when visible): a
    list of ``{"args": [...], "kwargs": {...}, "expected": ..., "compare": ...}``
    in the plain-value encoding of `trialyard.core.plain`.
    """

    kind: Literal["values"] = "values"
    file: str
    function: str
    cases: str
    timeout_s: float = Field(default=5.0, gt=0, le=3600)
    """Wall time for each case."""


class TestsCheck(CheckBase):
    """Run a pytest suite from ``tests/`` in the grader's box; expected ids are fixed."""

    __test__ = False  # the name is no invitation to pytest

    kind: Literal["tests"] = "tests"
    paths: tuple[str, ...]
    expected: tuple[str, ...] = ()
    timeout_s: float = Field(default=60.0, gt=0, le=86400)
    """Wall time for the whole suite."""
    test_timeout_s: float = Field(default=10.0, gt=0, le=86400)
    """Wall time for each test."""


class ScriptCheck(CheckBase):
    """Harbor's ``tests/test.sh``: it writes /logs/verifier/reward.txt or reward.json."""

    kind: Literal["script"] = "script"
    script: str = "test.sh"
    timeout_s: float = Field(default=600.0, gt=0, le=86400)


Check = Annotated[ValuesCheck | TestsCheck | ScriptCheck, Field(discriminator="kind")]


class Rubric(Record):
    """How check scores become one reward in [0, 1].

    ``weighted``: weighted mean of the scores. ``all``: 1 when every check passed, else
    0. ``min``: the smallest score. A failed `required` check makes the reward 0 in
    every mode. Rewards below `threshold` become 0.
    """

    combine: Literal["weighted", "all", "min"] = "weighted"
    threshold: float = Field(default=0.0, ge=0, le=1)
    tamper: Literal["zero", "ungraded", "report"] = "zero"
    solved_bonus: float = Field(default=0.0, ge=0, lt=1)
    """Share of the reward that is paid only when every check passed."""


class AgentSpec(Record):
    """How an agent works on the task and what it may spend."""

    tool: Literal["answer", "shell"] = "answer"
    """``answer``: each completion is the whole of `answer_file`. ``shell``: fenced commands."""
    answer_file: str = "solution.py"
    answer_prefix: str = ""
    """Put before the completion to make the file, e.g. a function's head."""
    max_turns: int = Field(default=3, ge=1, le=10_000)
    max_tokens: int = Field(default=32_768, ge=1)
    """Sampled tokens over the whole rollout."""
    max_tokens_per_turn: int = Field(default=2048, ge=1)
    timeout_s: float = Field(default=600.0, gt=0, le=30 * 86400)
    feedback: Literal["full", "compact"] = "full"
    turn_penalty: float = Field(default=0.0, ge=0, le=1)
    """Taken off the reward for each turn after the first (never below 0)."""


class TaskSpec(Record):
    """The declarative part of a task: everything but its files."""

    id: str = Field(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?$")
    instruction: str
    split: Split = "train"
    image: str = "host"
    workdir: str = Field(default="/work", pattern=r"^/[A-Za-z0-9_./-]+$")
    domain: str = ""
    language: str = ""
    framework: str = ""
    difficulty: str = ""
    tags: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    """Absolute paths outside the workdir that belong to the submission."""
    protected: tuple[str, ...] = ()
    """Paths below the workdir (or absolute) that a submission may not change."""
    checks: tuple[Check, ...] = ()
    rubric: Rubric = Rubric()
    agent: AgentSpec = AgentSpec()
    limits: Limits = Limits()
    grade_at: Literal["end", "submit", "turn"] = "end"
    grader_timeout_s: float = Field(default=600.0, gt=0)
    seed: int = 0
    metadata: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """An immutable problem. Identity is `hash`, over all that can change the outcome.

    `environment` is all that the agent's box ever holds; `tests` and `solution` never
    enter it. File trees are relative path -> content.
    """

    spec: TaskSpec
    environment: Mapping[str, bytes] = field(default_factory=dict)
    tests: Mapping[str, bytes] = field(default_factory=dict)
    solution: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.spec.id

    @cached_property
    def hash(self) -> str:
        spec = self.spec.model_dump(mode="json", exclude={"metadata"})
        trees = [tree_hash(tree) for tree in (self.environment, self.tests, self.solution)]
        return content_hash([spec, trees])

    @property
    def visible_checks(self) -> tuple[Check, ...]:
        return tuple(check for check in self.spec.checks if check.visible)

    @property
    def hidden_checks(self) -> tuple[Check, ...]:
        return tuple(check for check in self.spec.checks if not check.visible)
