"""The command line: bad input gets one or two lines that say what to do, and exit code 2."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from trialyard.cli.main import COMMANDS, main
from trialyard.cli.rollout import printable
from trialyard.cli.sandbox_flags import parse_size
from trialyard.core.errors import UserError


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["train", "no-such.toml"], "no configuration file at no-such.toml"),
        (["train", "configs/quickstart.toml", "--set", "rl.stepz=3"], "did you mean 'steps'"),
        (["train", "configs/quickstart.toml", "--set", "nonsense"], "KEY=VALUE"),
        (["resume", "no-such-run"], "no run at no-such-run"),
        (["report", "no-such-run"], "no run at no-such-run"),
        (["grade", "no-such-task"], "no-such-task"),
        (["rollout", "no-such-task"], "no-such-task"),
        (["tasks", "list", "no-such-folder"], "no-such-folder"),
        (["tasks", "generate", "no-such-generator", "x"], "list-functions"),
        (["tasks", "import", "no-such-format", "a", "b"], "mbpp"),
        (["sandbox", "run"], "no command"),
        (["sandbox", "run", "--memory", "lots", "--", "true"], "--memory 'lots'"),
        (["sandbox", "run", "--pids", "0", "--", "true"], "limit pids"),
        (["sandbox", "run", "--network", "all", "--", "true"], "limit network: network 'all'"),
        (
            ["sandbox", "run", "--network", "allow-list:a.org:443,b.org", "--", "true"],
            "entry 'b.org': the port is missing; write HOST:PORT",
        ),
        (["sandbox", "run", "--bandwidth", "1", "--", "true"], "limit bandwidth_bytes_per_s"),
        (["sandbox", "run", "--user", "stranger", "--", "true"], "user stranger"),
        (["sandbox", "run", "--env", "X", "--", "true"], "--env 'X'"),
        (["bench", "no-such-benchmark"], "known:"),
    ],
)
def test_bad_input_exits_with_2_and_says_what_to_do(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert len(error.strip().splitlines()) <= 2
    assert "Traceback" not in error


def test_an_unknown_policy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "generate", "list-functions", str(tmp_path), "--count", "1"]) == 0
    argv = ["rollout", str(tmp_path / "train-000000"), "--policy", "oracle"]
    assert main([*argv, "--out", str(tmp_path / "out")]) == 2
    assert "unknown policy 'oracle'; known: reference" in capsys.readouterr().err


def test_tasks_are_generated_listed_and_shown_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "generate", "list-functions", str(tmp_path), "--count", "2"]) == 0
    capsys.readouterr()
    assert main(["tasks", "list", str(tmp_path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in rows] == [
        "list-functions/train-000000",
        "list-functions/train-000001",
    ]
    assert main(["tasks", "show", rows[0]["path"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hash"] == rows[0]["hash"]


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.__name__)
def test_every_command_explains_itself(
    module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    name = module.__name__.rpartition(".")[2]
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "usage: trialyard" in text
    assert len(text.splitlines()) > 5


def test_sizes() -> None:
    assert parse_size("512M", "--memory") == 512 << 20
    assert parse_size("1.5k", "--x") == 1536
    assert parse_size("7", "--x") == 7
    with pytest.raises(UserError, match="--x"):
        parse_size("-1", "--x")


def test_untrusted_text_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[2J\x07b\n") == "a\\x1b[2J\\x07b\n"
