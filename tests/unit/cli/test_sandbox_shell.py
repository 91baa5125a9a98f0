"""``trialyard sandbox shell``: lines in, output and one exit code out."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from trialyard.cli import sandbox_shell
from trialyard.cli.main import main
from trialyard.core.errors import ShellEnded, UserError
from trialyard.core.sandbox import ExecResult, ExecStatus
from trialyard.testing.sandbox import FakeCall, FakeSandbox, exited


def program(call: FakeCall) -> ExecResult:
    text = call.argv[-1]
    if text == "slow":
        return ExecResult(ExecStatus.TIMEOUT, limits_hit=frozenset({"wall"}))
    return exited(4 if text == "fails" else 0, os.fsencode(f"<{text}>\n"))


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> FakeSandbox:
    fake = FakeSandbox(program)

    @asynccontextmanager
    async def open_box(*_: object) -> AsyncIterator[FakeSandbox]:
        yield fake

    monkeypatch.setattr(sandbox_shell, "open_box", open_box)
    return fake


def shell_of(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    """The exit code of one session whose stdin holds `text`."""
    (tmp_path / "lines").write_bytes(text)
    with (tmp_path / "lines").open() as lines:
        monkeypatch.setattr(sys, "stdin", lines)
        return main(["sandbox", "shell", *flags])


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        (b"", 0, b""),
        (b"a\n\nb", 0, b"<a>\n<>\n<b>\n"),
        (b"fails\n", 4, b"<fails>\n"),
        (b"fails\na\n", 0, b"<fails>\n<a>\n"),
        (b"exit 3\na\n", 3, b""),
        (b"a\nslow\n", 124, b"<a>\n"),
        (b"\xff\n", 0, b"<\xff>\n"),
        (b"a\0b\n", 2, b""),
    ],
)
def test_lines_run_in_turn_and_the_last_gives_the_code(
    sandbox: FakeSandbox,
    text: bytes,
    code: int,
    shown: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert shell_of(text, tmp_path, monkeypatch, "--env", "K=V") == code
    assert capfdbinary.readouterr().out == shown
    assert all(call.env == {"K": "V"} for call in sandbox.calls)


def test_a_command_that_was_ended_is_told(
    sandbox: FakeSandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    shell_of(b"slow\n", tmp_path, monkeypatch)
    assert b"the command ended: timeout (wall)" in capfdbinary.readouterr().err


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (ShellEnded("x", exit_code=9), 9),
        (ShellEnded("x", signal=15), 143),
        (ShellEnded("x"), 125),
    ],
)
def test_the_code_of_a_shell_that_ended(ended: ShellEnded, code: int) -> None:
    assert sandbox_shell._code_of_end(ended) == code


def test_a_bad_limit_is_refused_before_a_box_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "shell", "--pids", "0"]) == 2
    assert "limit pids" in capsys.readouterr().err


async def test_lines_that_come_in_pieces() -> None:
    reader, writer = os.pipe()
    try:
        lines = sandbox_shell._Lines(reader)
        os.write(writer, b"a\nb")
        assert await lines.take() == b"a"
        os.write(writer, b"c\nlast")
        assert await lines.take() == b"bc"
        os.close(writer)
        assert [await lines.take(), await lines.take(), await lines.take()] == [b"last", None, None]
    finally:
        os.close(reader)


async def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_shell, "_MAX_LINE_BYTES", 100)
    zeros = os.open("/dev/zero", os.O_RDONLY)
    try:
        with pytest.raises(UserError, match="longer than 100"):
            await sandbox_shell._Lines(zeros).take()
    finally:
        os.close(zeros)
