"""Trajectories as Arrow rows: exact round trip, checksum, versions of the schema."""

import math
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records import trajectory_of
from trialyard.core import grader
from trialyard.core.errors import StoreError
from trialyard.core.grader import CheckResult, TamperFinding, Verdict
from trialyard.core.policy import VersionSpan
from trialyard.core.trajectory import CommandRecord, StopReason, Trajectory, Turn
from trialyard.trajectories import schema
from trialyard.trajectories.schema import TRAJECTORY, checksum, from_batch, to_batch

texts = st.text(max_size=20)
doubles = st.floats(allow_nan=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
int64 = st.integers(-(2**63), 2**63 - 1)
ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6).map(tuple)
commands = st.builds(
    CommandRecord,
    argv=st.lists(texts, max_size=3).map(tuple),
    status=texts,
    exit_code=st.none() | int64,
    wall_s=doubles,
    stdout=st.binary(max_size=20),
    stderr=st.binary(max_size=20),
)
turns = st.builds(
    Turn,
    context=texts,
    context_ids=ids,
    output=texts,
    output_ids=ids,
    logprobs=st.lists(doubles, max_size=6).map(tuple),
    versions=st.lists(st.builds(VersionSpan, int64, int64), max_size=3).map(tuple),
    finish=st.sampled_from(["stop", "length"]),
    observation=texts,
    commands=st.lists(commands, max_size=2).map(tuple),
    reward=st.none() | doubles,
    policy_s=doubles,
    sandbox_s=doubles,
    branch=st.booleans(),
)
verdicts = st.builds(
    Verdict,
    status=st.just("graded"),
    fault=st.sampled_from(["none", "model"]),
    trust=st.sampled_from(["separated", "hardened", "live"]),
    reward=st.floats(0, 1),
    passed=st.booleans(),
    reason=texts,
    checks=st.lists(
        st.builds(
            CheckResult,
            name=texts,
            kind=texts,
            weight=finite,
            score=st.none() | st.floats(0, 1),
            passed=st.booleans(),
            evidence=texts,
        ),
        max_size=2,
    ).map(tuple),
    tests=st.lists(
        st.builds(grader.TestResult, id=texts, status=st.sampled_from(["passed", "failed"])),
        max_size=2,
    ).map(tuple),
    tampering=st.lists(st.builds(TamperFinding, kind=texts), max_size=2).map(tuple),
    usage=st.dictionaries(texts, finite, max_size=2),
    seed=int64,
)
trajectories = st.builds(
    Trajectory,
    id=texts,
    run=texts,
    group=texts,
    member=int64,
    attempt=int64,
    task_id=texts,
    task_hash=texts,
    image_digest=texts,
    seed=int64,
    turns=st.lists(turns, max_size=3).map(tuple),
    stop=st.sampled_from(StopReason),
    verdict=verdicts,
    diff=st.binary(max_size=30),
    faults=st.lists(texts, max_size=2).map(tuple),
    penalty=doubles,
    started_s=doubles,
    wall_s=doubles,
)


@given(st.lists(trajectories, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_every_field_reads_back_exactly(records: list[Trajectory]) -> None:
    assert from_batch(to_batch(records), "here") == records


def test_every_field_has_a_column() -> None:
    def names(kind: Any) -> list[str]:
        return [field.name for field in fields(kind)]

    assert [field.name for field in TRAJECTORY] == [*names(Trajectory), "checksum"]
    assert [field.name for field in schema.TURN] == names(Turn)
    assert [field.name for field in schema.COMMAND] == names(CommandRecord)
    assert [field.name for field in schema.SPAN] == names(VersionSpan)


def test_unsound_log_probabilities_are_kept_as_recorded() -> None:
    first = trajectory_of("a")
    turn = replace(first.turns[0], logprobs=(math.nan, -math.inf, -0.0, 1e-310, 0.1))
    (back,) = from_batch(to_batch([replace(first, turns=(turn,))]), "here")
    assert list(map(repr, back.turns[0].logprobs)) == list(map(repr, turn.logprobs))


def test_whole_numbers_where_floats_belong_are_stored() -> None:
    record = replace(trajectory_of("a"), wall_s=3, started_s=0, penalty=0)
    (back,) = from_batch(to_batch([record]), "here")
    assert back == record
    assert type(back.wall_s) is float


def test_text_that_is_not_unicode_is_stored_with_replacements() -> None:
    first = trajectory_of("a")
    turn = replace(first.turns[0], output="ok \ud800 \U0001f600")
    verdict = first.verdict.model_copy(update={"reason": "bad \udfff"})
    (back,) = from_batch(to_batch([replace(first, turns=(turn,), verdict=verdict)]), "here")
    assert back.turns[0].output == "ok \ufffd \U0001f600"
    assert back.verdict.reason == "bad \ufffd"
    assert back.turns[0].output_ids == turn.output_ids


@pytest.mark.parametrize(
    "change", [{"seed": 2**63}, {"member": 2**70}, {"diff": "text"}, {"wall_s": "soon"}]
)
def test_a_value_that_no_column_holds_is_a_store_error(change: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="trajectories a cannot be stored"):
        to_batch([replace(trajectory_of("a"), **change)])


def test_a_token_id_beyond_32_bits_is_a_store_error() -> None:
    first = trajectory_of("a")
    turn = replace(first.turns[0], output_ids=(2**31,))
    with pytest.raises(StoreError, match="token ids must fit 32 bits"):
        to_batch([replace(first, turns=(turn,))])


def _changed(batch: pa.RecordBatch, column: str, value: Any) -> pa.RecordBatch:
    rows = batch.to_pylist()
    rows[0][column] = value
    return pa.RecordBatch.from_pylist(rows, schema=batch.schema)


@pytest.mark.parametrize(
    ("column", "value"),
    [("id", "b"), ("seed", 1), ("diff", b"x"), ("wall_s", 1e-300), ("checksum", 7), ("turns", [])],
)
def test_a_changed_column_fails_the_checksum(column: str, value: Any) -> None:
    with pytest.raises(StoreError, match="segment 7, batch 3, record 0 is corrupt"):
        from_batch(_changed(to_batch([trajectory_of("a")]), column, value), "segment 7, batch 3")


def test_tokens_moved_between_lists_fail_the_checksum() -> None:
    first = trajectory_of("a")
    moved = replace(first.turns[0], context_ids=(1, 2, 3), output_ids=(4,))
    rows = [to_batch([t]).to_pylist()[0] for t in (first, replace(first, turns=(moved,)))]
    assert rows[0]["checksum"] != rows[1]["checksum"]


def _resigned(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    row = {**row, **changes}
    row.pop("checksum")
    return {**row, "checksum": checksum(row)}


def test_a_newer_schema_version_is_refused() -> None:
    (row,) = to_batch([trajectory_of("a")]).to_pylist()
    batch = pa.RecordBatch.from_pylist([_resigned(row, schema_version=99)], schema=TRAJECTORY)
    with pytest.raises(StoreError, match=r"schema version 99.*use a newer trialyard"):
        from_batch(batch, "here")


def test_a_file_from_before_a_field_was_added_takes_its_default() -> None:
    older = pa.schema([field for field in TRAJECTORY if field.name != "penalty"])
    (row,) = to_batch([replace(trajectory_of("a"), penalty=0.5)]).to_pylist()
    del row["penalty"]
    batch = pa.RecordBatch.from_pylist([_resigned(row)], schema=older)
    assert from_batch(batch, "here") == [trajectory_of("a")]
