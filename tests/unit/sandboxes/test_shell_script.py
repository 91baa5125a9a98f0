"""What shells are told and what they answer; random texts against live shells."""

import asyncio
import contextlib
import shlex
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.boxes import namespace_pool
from trialyard.core.errors import ShellEnded
from trialyard.core.process import Shell
from trialyard.core.sandbox import ExecResult, ExecStatus, Limits
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.shell_script import BashScript, PosixScript, Report, parse_report


@given(st.binary(max_size=64))
def test_a_report_is_well_formed_or_none(line: bytes) -> None:
    report = parse_report(line)
    if report is not None:
        assert 0 <= report.exit_code <= 255
        assert line == f"{report.id} {report.exit_code} {report.flags} {report.abort}".encode()


@given(st.integers(0, 10**10 - 1), st.integers(0, 255), st.sampled_from(["", "e", "i"]))
def test_a_report_is_read_as_it_was_written(id: int, code: int, abort: str) -> None:
    line = f"{id} {code} hiBE {abort}".encode()
    assert parse_report(line) == Report(id, code, "hiBE", abort)


@pytest.mark.parametrize(
    "line",
    [b"", b"1 256 h ", b"1 -1 h ", b"1 1 h", b"1 1 h x", b"1\0 1 h ", b"1 1 h e\n", b" 1 1  "],
)
def test_nonsense_is_no_report(line: bytes) -> None:
    assert parse_report(line) is None


@given(st.binary(), st.integers(1, 1000), st.sampled_from(["", "e", "x", "exv"]))
def test_the_text_of_a_command_is_kept_whole(command: bytes, id: int, flags: str) -> None:
    for script in (BashScript(242), PosixScript()):
        text = script.text(command, id, Report(id - 1, 3, flags, ""))
        header, _, rest = text.partition(b"\n")
        assert rest == command + b"\n"
        assert str((1 << 40) - id).encode() in header


class LiveShell:
    """One shell for many examples; a new one when it was ended."""

    def __init__(self, box: NamespaceSandbox, runner: asyncio.Runner) -> None:
        self._box = box
        self._runner = runner
        self._shell: Shell | None = None

    def run(self, text: str) -> ExecResult | None:
        return self._runner.run(self._run(text))

    async def _run(self, text: str) -> ExecResult | None:
        if self._shell is None:
            self._shell = await self._box.shell()
        try:
            return await self._shell.run(text, timeout_s=5)
        except ShellEnded:
            self._shell = None
            return None


@pytest.fixture(params=["bash", "sh"])
def live(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveShell]:
    with asyncio.Runner() as runner:
        pool, leases = namespace_pool(), contextlib.AsyncExitStack()
        lease = pool.acquire(image="host", limits=Limits(), owner="test")
        box = runner.run(leases.enter_async_context(lease))
        assert isinstance(box, NamespaceSandbox)
        if request.param == "sh":
            monkeypatch.setattr(box, "_shell_script", lambda path: PosixScript())
        yield LiveShell(box, runner)
        runner.run(leases.aclose())
        runner.run(pool.close())


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200)
SHARED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SHARED
@given(word=TEXT)
def test_any_text_is_echoed_exactly(live: LiveShell, word: str) -> None:
    result = live.run(f"printf %s {shlex.quote(word)}")
    assert result is not None
    assert (result.exit_code, result.stdout, result.stderr) == (0, word.encode(), b"")


SYNTAX = r"""
    echo true false ( ) { } ; & | && || if then fi while do done case esac in for x $x $? ! ' "
    ` \ < > << <<< EOF $( )) (( [[ ]] function return break continue set -e +e -u -x -o posix
    trap ERR EXIT DEBUG INT : . eval wait local declare unset shift exec >&2 2>&1 <&- #
"""
WORDS = st.sampled_from([*SYNTAX.split(), "\n"])


@SHARED
@given(words=st.lists(WORDS, min_size=1, max_size=12))
def test_whatever_a_text_does_the_next_command_is_answered(
    live: LiveShell, words: list[str]
) -> None:
    result = live.run(" ".join(words))
    if result is not None and result.status is ExecStatus.EXITED:
        result = live.run("set +eux; exec >/dev/null 2>&1; (exit 42)")
    assert result is None or result.status in (ExecStatus.EXITED, ExecStatus.TIMEOUT)
    if result is not None and result.status is ExecStatus.EXITED:
        assert result.exit_code == 42
    live.run("exit 0")
