"""Verdicts: reward and status can never disagree."""

import math

import pytest
from pydantic import ValidationError

from trialyard.core.grader import Submission, Verdict


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "graded", "fault": "none"},
        {"status": "ungraded", "fault": "environment", "reward": 0.0},
        {"status": "graded", "fault": "environment", "reward": 0.0},
        {"status": "graded", "fault": "task", "reward": 0.0},
        {"status": "graded", "fault": "none", "reward": 1.5},
        {"status": "graded", "fault": "none", "reward": -0.1},
        {"status": "graded", "fault": "none", "reward": math.nan},
        {"status": "graded", "fault": "none", "reward": math.inf},
    ],
)
def test_an_inconsistent_verdict_cannot_exist(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Verdict.model_validate({"trust": "separated", **fields})


def test_a_diff_hash_is_by_content_and_sees_removals() -> None:
    assert Submission({"a": b"1"}).diff_hash == Submission({"a": b"1"}, trajectory="x").diff_hash
    hashes = {
        Submission(files).diff_hash
        for files in ({"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {"a": None}, {})
    }
    assert len(hashes) == 5
