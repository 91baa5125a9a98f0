"""One frozen configuration tree. Defaults stand here; a TOML file holds differences.

No object below `run` sees the tree: `wiring` turns each section into constructor
arguments. Unknown keys are refused with a suggestion. At most 60 leaves.
"""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from trialyard.core.errors import ConfigError
from trialyard.core.record import Record


class TasksConfig(Record):
    """Where tasks come from: a generator or a directory of task directories."""

    generator: str = "list-functions"
    directory: str = ""
    train: int = Field(default=2600, ge=1)
    held_out: int = Field(default=300, ge=1)


class PolicyConfig(Record):
    """The policy that learns: ``tiny`` is made on the spot, ``hf`` is a model directory."""

    kind: Literal["tiny", "hf"] = "tiny"
    path: str = ""
    d_model: int = Field(default=64, ge=8)
    layers: int = Field(default=3, ge=1)
    heads: int = Field(default=4, ge=1)
    ff: int = Field(default=192, ge=8)
    context: int = Field(default=256, ge=16)


class SftConfig(Record):
    """Supervised warm start on demonstrations; 0 steps leaves it out."""

    demonstrations: int = Field(default=2000, ge=1)
    steps: int = Field(default=250, ge=0)
    batch: int = Field(default=48, ge=1)


class RlConfig(Record):
    """Group-relative policy gradient. `max_staleness` 0 is synchronous training."""

    steps: int = Field(default=110, ge=0)
    tasks_per_step: int = Field(default=16, ge=1)
    group_size: int = Field(default=8, ge=2)
    minibatch: int = Field(default=64, ge=1)
    epochs: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    final_learning_rate: float = Field(default=1e-4, ge=0)
    warmup_steps: int = Field(default=5, ge=0)
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    max_staleness: int = Field(default=2, ge=0)
    advantage: Literal["none", "deviation", "leave_one_out"] = "deviation"
    """What divides a reward's distance from its group's mean."""
    reward: Literal["verdict", "random"] = "verdict"
    """``random`` is the control: rewards are drawn, so that nothing can be learnt."""


class RolloutConfig(Record):
    """How rollouts are sampled and repeated."""

    temperature: float = Field(default=1.0, gt=0)
    max_attempts: int = Field(default=3, ge=1)
    feedback: Literal["own", "swapped"] = "own"
    """``swapped`` is an ablation: each failed try is answered with another task's feedback."""


class SandboxConfig(Record):
    """Boxes for agents and graders."""

    max_boxes: int = Field(default=256, ge=2)
    warm: int = Field(default=16, ge=0)


class EvaluationConfig(Record):
    """Held-out evaluation; `every` steps during RL, 0 for only before and after."""

    every: int = Field(default=0, ge=0)
    samples: int = Field(default=1, ge=1)


class CheckpointConfig(Record):
    """A checkpoint each `every` steps; nothing after the last one survives a crash."""

    every: int = Field(default=1, ge=1)
    keep: int = Field(default=2, ge=1)


class RunConfig(Record):
    """The whole configuration of one run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    seed: int = Field(default=0, ge=0)
    tasks: TasksConfig = TasksConfig()
    policy: PolicyConfig = PolicyConfig()
    sft: SftConfig = SftConfig()
    rl: RlConfig = RlConfig()
    rollout: RolloutConfig = RolloutConfig()
    sandbox: SandboxConfig = SandboxConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if self.policy.kind == "hf" and not self.policy.path:
            raise ValueError("policy.path must name a model directory when policy.kind is 'hf'")
        if self.tasks.directory and self.sft.steps:
            raise ValueError("sft.steps must be 0 when tasks.directory is used: no demonstrations")
        if self.policy.d_model % self.policy.heads:
            raise ValueError("policy.d_model must be a multiple of policy.heads")
        return self


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a TOML file and apply dotted overrides such as ``{"rl.steps": 10}``.

    Raises `ConfigError` naming file, key and fix.
    """
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}; see configs/ for examples") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for key, value in (overrides or {}).items():
        _set(tree, key.split("."), value, key)
    return parse_config(tree, str(path))


def parse_config(tree: Mapping[str, Any], source: str) -> RunConfig:
    """Validate a plain tree. Raises `ConfigError` with one line per mistake."""
    _refuse_unknown(tree, RunConfig, (), source)
    try:
        return RunConfig.model_validate(dict(tree))
    except ValidationError as error:
        lines = [
            f"{source}: {'.'.join(map(str, e['loc'])) or 'config'}: {_plain_message(e['msg'])}"
            for e in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from None


def parse_override(text: str) -> tuple[str, Any]:
    """``rl.steps=10`` as key and TOML value; a bare word is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: write KEY=VALUE, e.g. --set rl.steps=10")
    try:
        return key.strip(), tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def leaves(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Dotted names of every leaf of the tree."""
    names: list[str] = []
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        names += leaves(section, f"{prefix}{name}.") if section else [prefix + name]
    return names


def to_toml(config: RunConfig) -> str:
    """The resolved tree as TOML, every leaf written out."""
    top, sections = [], []
    for name, value in config.model_dump(mode="json").items():
        if isinstance(value, dict):
            body = "\n".join(f"{key} = {_toml_value(item)}" for key, item in value.items())
            sections.append(f"[{name}]\n{body}\n")
        else:
            top.append(f"{name} = {_toml_value(value)}")
    return "\n".join(top) + "\n\n" + "\n".join(sections)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)


def _section(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *get_args(annotation)]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _refuse_unknown(
    tree: Mapping[str, Any], model: type[BaseModel], path: tuple[str, ...], source: str
) -> None:
    for key, value in tree.items():
        field = model.model_fields.get(key)
        if field is None:
            known = [*model.model_fields]
            dotted = ".".join([*path, key])
            close = difflib.get_close_matches(key, known, 1)
            inside = f"in [{'.'.join(path)}]" if path else "at the top"
            hint = f"did you mean {close[0]!r}?" if close else f"known {inside}: {', '.join(known)}"
            raise ConfigError(f"{source}: unknown key {dotted!r}; {hint}")
        section = _section(field.annotation)
        if section and isinstance(value, Mapping):
            _refuse_unknown(value, section, (*path, key), source)


def _set(tree: dict[str, Any], path: list[str], value: Any, key: str) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"--set {key}: {part!r} is a value, not a section")
    tree[path[-1]] = value


def _plain_message(message: str) -> str:
    return message.removeprefix("Value error, ")
