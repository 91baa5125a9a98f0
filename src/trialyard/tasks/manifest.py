"""task.toml as a `TaskSpec`, and back.

Harbor's tables carry what Harbor knows (limits, times, name); [trialyard] carries the
rest and wins where both speak. Harbor's keys that we do not use are kept in
``metadata["harbor"]``, which is outside the task's hash.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from trialyard.core.errors import TaskError
from trialyard.core.sandbox import Limits
from trialyard.core.task import (
    AgentSpec,
    Rubric,
    ScriptCheck,
    TaskSpec,
    TestsCheck,
    ValuesCheck,
)

SCHEMA_VERSION = "1.1"
KNOWN_VERSIONS = frozenset({"1.0", "1.1", "1.2", "1.3", "1.4"})
_MIB = 1 << 20
_SPEC_KEYS = frozenset(TaskSpec.model_fields) - {"id", "instruction", "metadata"}
_USED = {
    "task": {"name"},
    "metadata": {"difficulty", "tags"},
    "agent": {"timeout_sec"},
    "verifier": {"timeout_sec"},
    "environment": {
        "docker_image",
        "cpus",
        "memory_mb",
        "memory",
        "storage_mb",
        "storage",
        "workdir",
    },
}
_TABLES: dict[str, type[BaseModel]] = {"rubric": Rubric, "agent": AgentSpec, "limits": Limits}
_CHECKS: dict[str, type[BaseModel]] = {
    "values": ValuesCheck,
    "tests": TestsCheck,
    "script": ScriptCheck,
}
_HARBOR_PLACES = {
    "id": "[task] name",
    "image": "[environment] docker_image",
    "workdir": "[environment] workdir",
    "limits.cpus": "[environment] cpus",
    "limits.memory_bytes": "[environment] memory_mb",
    "limits.disk_bytes": "[environment] storage_mb",
    "agent.timeout_s": "[agent] timeout_sec",
    "grader_timeout_s": "[verifier] timeout_sec",
    "difficulty": "[metadata] difficulty",
    "tags": "[metadata] tags",
    "artifacts": "artifacts",
}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*$", re.IGNORECASE)


def read_manifest(
    table: Mapping[str, Any],
    *,
    source: str,
    instruction: str,
    default_id: str,
    tests: Mapping[str, bytes],
) -> TaskSpec:
    """The spec that a parsed task.toml stands for. Raises `TaskError`."""
    reader = _Reader(table, source)
    reader.refuse_unsupported()
    ours = reader.table("trialyard")
    fields = {"id": default_id, **reader.harbor_fields()}
    for key in ours:
        if key not in _SPEC_KEYS:
            hint = _did_you_mean(key, _SPEC_KEYS)
            raise TaskError(f"{source}: [trialyard] has no key {key!r}{hint}")
    for key, value in ours.items():
        nested = isinstance(value, dict) and isinstance(fields.get(key), dict)
        fields[key] = {**fields[key], **value} if nested else value
    if "checks" not in ours:
        if "test.sh" not in tests:
            raise TaskError(f"{source}: neither [[trialyard.checks]] nor tests/test.sh is there")
        fields["checks"] = [{"kind": "script", "name": "test.sh", "required": True}]
        fields["agent"] = {"tool": "shell", **fields.get("agent", {})}
    fields |= {"instruction": instruction, "metadata": reader.kept()}
    try:
        return TaskSpec.model_validate(fields)
    except ValidationError as error:
        raise TaskError(f"{source}: {_explain(error, ours)}") from error


def write_manifest(spec: TaskSpec) -> dict[str, Any]:
    """The TOML table of a spec: Harbor's view first, then what only we know."""
    metadata = dict(spec.metadata)
    harbor = metadata.pop("harbor", {})
    limits = spec.limits
    table: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "task": {"name": spec.id},
        "metadata": {"difficulty": spec.difficulty or None, "tags": list(spec.tags), **metadata},
        "agent": {"timeout_sec": spec.agent.timeout_s},
        "verifier": {"timeout_sec": spec.grader_timeout_s},
        "environment": {
            "docker_image": None if spec.image == "host" else spec.image,
            "cpus": limits.cpus,
            "memory_mb": max(1, limits.memory_bytes // _MIB),
            "storage_mb": max(1, limits.disk_bytes // _MIB),
            "workdir": spec.workdir,
            "network_mode": "no-network",
        },
    }
    for name, value in harbor.items():
        table[name] = {**value, **table.get(name, {})} if isinstance(value, dict) else value
    table["trialyard"] = _own(spec)
    return table


def _own(spec: TaskSpec) -> dict[str, Any]:
    """What differs from the defaults and is not said by Harbor's tables already."""
    own = spec.model_dump(mode="json", exclude_defaults=True)
    for key in ("id", "instruction", "metadata", "image", "workdir", "difficulty", "tags"):
        own.pop(key, None)
    own.pop("grader_timeout_s", None)
    own.get("agent", {}).pop("timeout_s", None)
    limits = own.get("limits", {})
    limits.pop("cpus", None)
    for key in ("memory_bytes", "disk_bytes"):
        if getattr(spec.limits, key) % _MIB == 0:
            limits.pop(key, None)
    own = {key: value for key, value in own.items() if value != {}}
    own["checks"] = [
        {"kind": check.kind, **check.model_dump(mode="json", exclude_defaults=True)}
        for check in spec.checks
    ]
    return own


class _Reader:
    """Harbor's tables of one task.toml; every complaint names file and field."""

    def __init__(self, top: Mapping[str, Any], source: str) -> None:
        self.top, self.source = top, source

    def table(self, name: str) -> dict[str, Any]:
        value = self.top.get(name, {})
        if not isinstance(value, dict):
            raise TaskError(f"{self.source}: [{name}] must be a table")
        return value

    def refuse_unsupported(self) -> None:
        version = str(self.top.get("schema_version", self.top.get("version", "1.0")))
        if version not in KNOWN_VERSIONS:
            known = ", ".join(sorted(KNOWN_VERSIONS))
            raise TaskError(f"{self.source}: schema_version {version!r} is not one of {known}")
        if self.top.get("steps"):
            raise TaskError(f"{self.source}: [[steps]]: tasks of several steps are not supported")
        if self.table("environment").get("gpus"):
            raise TaskError(f"{self.source}: environment.gpus: boxes have no GPU; set it to 0")

    def harbor_fields(self) -> dict[str, Any]:
        """Fields of the spec that Harbor's tables give."""
        environment, metadata = self.table("environment"), self.table("metadata")
        limits: dict[str, Any] = {}
        if "cpus" in environment:
            limits["cpus"] = environment["cpus"]
        for field, keys in (
            ("memory_bytes", ("memory_mb", "memory")),
            ("disk_bytes", ("storage_mb", "storage")),
        ):
            size = self._size(environment, *keys)
            if size is not None:
                limits[field] = size
        fields: dict[str, Any] = {
            "id": self.table("task").get("name"),
            "image": environment.get("docker_image"),
            "workdir": environment.get("workdir"),
            "difficulty": metadata.get("difficulty"),
            "tags": metadata.get("tags"),
            "artifacts": self.top.get("artifacts"),
            "grader_timeout_s": self.table("verifier").get("timeout_sec"),
            "limits": limits or None,
        }
        if "timeout_sec" in self.table("agent"):
            fields["agent"] = {"timeout_s": self.table("agent")["timeout_sec"]}
        return {key: value for key, value in fields.items() if value is not None}

    def _size(self, environment: Mapping[str, Any], in_mib: str, spelled: str) -> int | None:
        if in_mib in environment:
            value = environment[in_mib]
            if type(value) not in (int, float) or not 0 < value < 1 << 40:
                raise TaskError(f"{self.source}: environment.{in_mib} must be a number of MiB")
            return int(value * _MIB)
        if spelled not in environment:
            return None
        match = _SIZE.match(str(environment[spelled]))
        if match is None:
            raise TaskError(f'{self.source}: environment.{spelled}: write a size such as "4G"')
        return int(float(match[1]) * 1024.0 ** " KMGT".index(match[2].upper() or " "))

    def kept(self) -> dict[str, Any]:
        """[metadata], and under ``harbor`` whatever else Harbor reads and we do not."""
        metadata = {
            key: value
            for key, value in self.table("metadata").items()
            if key not in _USED["metadata"]
        }
        harbor: dict[str, Any] = {}
        for name, value in self.top.items():
            if name in ("metadata", "trialyard", "schema_version", "version", "artifacts"):
                continue
            if not isinstance(value, dict):
                harbor[name] = value
                continue
            rest = {k: v for k, v in value.items() if k not in _USED.get(name, ())}
            rest.pop("network_mode", None) if name == "environment" else None
            if rest:
                harbor[name] = rest
        return {**metadata, "harbor": harbor} if harbor else metadata


def _did_you_mean(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"


def _explain(error: ValidationError, ours: Mapping[str, Any]) -> str:
    """The first complaint in one line: where it stands in the file, and what is wrong."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    where = f"[trialyard] {place}"
    if str(first["loc"][0]) not in ours:
        where = _HARBOR_PLACES.get(place, where)
    if first["type"] == "extra_forbidden":
        *parents, key = (str(part) for part in first["loc"])
        return f"{where}: no such key{_did_you_mean(key, _known_below(parents))}"
    return f"{where}: {first['msg']} (given: {repr(first.get('input'))[:80]})"


def _known_below(parents: list[str]) -> Iterable[str]:
    """Keys that may stand in the table that `parents` lead to."""
    model = _TABLES.get(parents[0]) or _CHECKS.get(parents[-1])
    return model.model_fields if model else ()
