"""Trajectories as Arrow rows: the stored schema, its version, and a checksum per record.

A row holds every field of a `Trajectory` and reads back equal: log-probabilities are
float64 as recorded, token ids int32, command output bytes, the verdict its JSON. Only
text that is not Unicode (lone surrogates) is stored with U+FFFD in their place.

A field added later is absent in older files and takes its default on reading; a change
of meaning raises `core.trajectory.SCHEMA_VERSION` and gets an entry in `_UPGRADES`.
"""

import json
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from trialyard.core.errors import StoreError
from trialyard.core.grader import Verdict
from trialyard.core.policy import VersionSpan
from trialyard.core.trajectory import (
    SCHEMA_VERSION,
    CommandRecord,
    StopReason,
    Trajectory,
    Turn,
)

Row = dict[str, Any]

SPAN = pa.struct([("version", pa.int64()), ("num_tokens", pa.int64())])
COMMAND = pa.struct(
    [
        ("argv", pa.list_(pa.string())),
        ("status", pa.string()),
        ("exit_code", pa.int64()),
        ("wall_s", pa.float64()),
        ("stdout", pa.binary()),
        ("stderr", pa.binary()),
    ]
)
TURN = pa.struct(
    [
        ("context", pa.string()),
        ("context_ids", pa.list_(pa.int32())),
        ("output", pa.string()),
        ("output_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float64())),
        ("versions", pa.list_(SPAN)),
        ("finish", pa.string()),
        ("observation", pa.string()),
        ("commands", pa.list_(COMMAND)),
        ("reward", pa.float64()),
        ("policy_s", pa.float64()),
        ("sandbox_s", pa.float64()),
        ("branch", pa.bool_()),
    ]
)
TRAJECTORY = pa.schema(
    [
        ("id", pa.string()),
        ("run", pa.string()),
        ("group", pa.string()),
        ("member", pa.int64()),
        ("attempt", pa.int64()),
        ("task_id", pa.string()),
        ("task_hash", pa.string()),
        ("image_digest", pa.string()),
        ("seed", pa.int64()),
        ("turns", pa.list_(TURN)),
        ("stop", pa.string()),
        ("verdict", pa.string()),
        ("diff", pa.binary()),
        ("faults", pa.list_(pa.string())),
        ("penalty", pa.float64()),
        ("started_s", pa.float64()),
        ("wall_s", pa.float64()),
        ("schema_version", pa.int32()),
        ("checksum", pa.uint32()),
    ]
)

_UPGRADES: Mapping[int, Callable[[Row], Row]] = {}
"""Version -> what turns a row of that version into one of the next."""

_SPAN_FIELDS = tuple(field.name for field in SPAN)
_COMMAND_FIELDS = tuple(field.name for field in COMMAND)
_TURN_FIELDS = tuple(field.name for field in TURN)
_PACKED = (("context_ids", "i"), ("output_ids", "i"), ("logprobs", "d"))
_FIELDS = tuple(field.name for field in TRAJECTORY if field.name != "checksum")
_FLOATS = ("penalty", "started_s", "wall_s")
_CURE = "restore the file from a copy, or go on without these records"
_canonical = json.JSONEncoder(default=bytes.hex, separators=(",", ":")).encode


def to_batch(trajectories: Sequence[Trajectory]) -> pa.RecordBatch:
    """One Arrow batch of records. Raises `StoreError` for a value that no column holds."""
    try:
        rows = [_to_row(trajectory) for trajectory in trajectories]
        try:
            return _batch(rows)
        except UnicodeEncodeError:
            return _batch([_to_unicode(row) for row in rows])
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        ids = ", ".join(trajectory.id for trajectory in trajectories)
        raise StoreError(
            f"trajectories {ids} cannot be stored: {error}; token ids must fit 32 bits, seeds 64"
        ) from error


def from_batch(batch: pa.RecordBatch, place: str) -> list[Trajectory]:
    """Records of a batch, verified; `place` names it in errors. Raises `StoreError`."""
    found = []
    for number, row in enumerate(_verified(batch, place)):
        found.append(_from_row(row, f"{place}, record {number}"))
    return found


def _verified(batch: pa.RecordBatch, place: str) -> list[Row]:
    """Rows whose checksum holds. Names, types and values are all untrusted until then."""
    try:
        rows: list[Row] = batch.to_pylist()
        broken = [n for n, row in enumerate(rows) if row.pop("checksum") != checksum(row)]
    except (pa.ArrowException, ValueError, TypeError, KeyError, OverflowError) as error:
        raise StoreError(f"{place} is corrupt ({error}); {_CURE}") from error
    if broken:
        raise StoreError(
            f"{place}, record {broken[0]} is corrupt: its checksum does not match; {_CURE}"
        )
    return rows


def checksum(row: Row) -> int:
    """CRC-32 over every value of a row, in the order of its file's schema."""
    crc = 0
    turns = []
    for turn in row["turns"]:
        light = dict(turn)
        for name, kind in _PACKED:
            crc = zlib.crc32(array(kind, turn[name]), crc)
            light[name] = len(turn[name])
        turns.append(list(light.values()))
    values = list({**row, "turns": turns}.values())
    return zlib.crc32(_canonical(values).encode("ascii"), crc)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    signed = [{**row, "checksum": checksum(row)} for row in rows]
    return pa.RecordBatch.from_pylist(signed, schema=TRAJECTORY)


def _to_row(trajectory: Trajectory) -> Row:
    row = {name: getattr(trajectory, name) for name in _FIELDS}
    for name in _FLOATS:
        row[name] = float(row[name])
    row["turns"] = [_turn_row(turn) for turn in trajectory.turns]
    row["stop"] = trajectory.stop.value
    row["verdict"] = _verdict_text(trajectory.verdict)
    row["diff"] = bytes(trajectory.diff)
    return row


def _turn_row(turn: Turn) -> Row:
    row = {name: getattr(turn, name) for name in _TURN_FIELDS}
    row["versions"] = [{name: getattr(s, name) for name in _SPAN_FIELDS} for s in turn.versions]
    row["commands"] = [_command_row(command) for command in turn.commands]
    row["reward"] = None if turn.reward is None else float(turn.reward)
    row["policy_s"], row["sandbox_s"] = float(turn.policy_s), float(turn.sandbox_s)
    return row


def _command_row(command: CommandRecord) -> Row:
    row = {name: getattr(command, name) for name in _COMMAND_FIELDS}
    row["wall_s"] = float(command.wall_s)
    row["stdout"], row["stderr"] = bytes(command.stdout), bytes(command.stderr)
    return row


def _verdict_text(verdict: Verdict) -> str:
    try:
        return verdict.model_dump_json()
    except PydanticSerializationError:
        return json.dumps(_to_unicode(verdict.model_dump()))


def _to_unicode(value: Any) -> Any:
    """The same value with U+FFFD for lone surrogates, which UTF-8 cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_to_unicode(key): _to_unicode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_unicode(item) for item in value]
    return value


def _from_row(row: Row, place: str) -> Trajectory:
    try:
        row = _upgraded(row, place)
        fields = {
            **row,
            "turns": tuple(_turn(turn) for turn in row["turns"]),
            "stop": StopReason(row["stop"]),
            "verdict": Verdict.model_validate_json(row["verdict"]),
            "faults": tuple(row["faults"]),
        }
        return Trajectory(**fields)
    except (ValidationError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{place} ({row.get('id')!r}) cannot be read: {error}; {_CURE}") from error


def _upgraded(row: Row, place: str) -> Row:
    version = row["schema_version"]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{place} has schema version {version}, this trialyard reads up to {SCHEMA_VERSION}; "
            "use a newer trialyard"
        )
    for number in range(version, SCHEMA_VERSION):
        row = _UPGRADES[number](row)
    return {**row, "schema_version": SCHEMA_VERSION}


def _turn(row: Row) -> Turn:
    for name in ("context_ids", "output_ids", "logprobs"):
        row[name] = tuple(row[name])
    row["versions"] = tuple(VersionSpan(**span) for span in row["versions"])
    row["commands"] = tuple(
        CommandRecord(**{**command, "argv": tuple(command["argv"])}) for command in row["commands"]
    )
    return Turn(**row)
