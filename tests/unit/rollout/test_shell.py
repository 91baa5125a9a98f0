"""The shell tool: blocks are parsed exactly, and what is seen stays bounded."""

import pytest

from trialyard.core.sandbox import ExecResult, ExecStatus
from trialyard.rollout.shell import OBSERVATION_CHARS, Action, observation_text, parse_actions


@pytest.mark.parametrize(
    ("output", "actions"),
    [
        ("```bash\nls -l\n```", [Action("bash", "", "ls -l\n")]),
        ("I think.\n```sh\na\n```\nand\n```submit\n```\n",
         [Action("bash", "", "a\n"), Action("submit", "", "")]),
        ("```file src/a b.py\nx = 1\n```", [Action("file", "src/a b.py", "x = 1\n")]),
        ("```python\nx\n```", []),
        ("no block", []),
        ("```bash\nnever closed", []),
    ],
)  # fmt: skip
def test_blocks_are_parsed_in_order(output: str, actions: list[Action]) -> None:
    assert parse_actions(output) == actions


def test_an_observation_tells_the_status_and_is_bounded() -> None:
    result = ExecResult(
        ExecStatus.TIMEOUT, stdout=b"\xff" + b"x" * 100_000, limits_hit=frozenset({"wall"})
    )
    text = observation_text(result)
    assert text.startswith("[timeout (limits hit: wall)]")
    assert len(text) < OBSERVATION_CHARS + 200
    assert "characters left out" in text
