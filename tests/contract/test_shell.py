"""What every `Shell` promises: bash on both backends, sh, and the fake as far as it can."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from tests.boxes import BACKENDS, namespace_pool, processes_of_uid
from trialyard.core.errors import SandboxLost, ShellEnded, UserError
from trialyard.core.process import PtySize, Shell
from trialyard.core.sandbox import BoxUser, ExecResult, ExecStatus, Limits, Sandbox
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.shell_script import PosixScript
from trialyard.testing.pool import FakePool
from trialyard.testing.sandbox import FakeCall, FakeSandbox, exited

LIMITS = Limits(output_bytes=1 << 16)


def program(call: FakeCall) -> ExecResult:
    return exited(3, b"out\n") if "exit 3" in call.argv[-1] else exited(0, b"hi\n")


@pytest.fixture(params=[*BACKENDS, "sh", "fake"])
async def box(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Sandbox]:
    if request.param == "fake":
        fakes = FakePool(program)
        async with fakes.acquire(image="host", limits=LIMITS, owner="test") as fake:
            yield fake
        return
    backend = "namespace" if request.param == "sh" else request.param
    pool = namespace_pool(max_boxes=1, backend=backend)
    async with pool.acquire(image="host", limits=LIMITS, owner="test") as made:
        if request.param == "sh":
            monkeypatch.setattr(made, "_shell_script", lambda path: PosixScript())
        yield made
    await pool.close()
    assert pool.counters()["leaked"] == 0


@pytest.fixture(params=[*BACKENDS, "root"])
async def bash_box(request: pytest.FixtureRequest) -> AsyncIterator[NamespaceSandbox]:
    is_root = request.param == "root"
    pool = namespace_pool(max_boxes=1, backend="namespace" if is_root else request.param)
    user: BoxUser = "root" if is_root else "user"
    async with pool.acquire(image="host", limits=LIMITS, owner="test", user=user) as made:
        assert isinstance(made, NamespaceSandbox)
        yield made
    await pool.close()
    assert pool.counters()["leaked"] == 0


@pytest.fixture
async def bash(bash_box: NamespaceSandbox) -> Shell:
    return await bash_box.shell()


async def said(shell: Shell, command: str) -> str:
    """Both streams of a command, whatever became of it."""
    result = await shell.run(command, timeout_s=10)
    assert result.status is ExecStatus.EXITED
    return (result.stdout + result.stderr).decode()


# --- all of them --------------------------------------------------------------------------


async def test_commands_give_results(box: Sandbox) -> None:
    shell = await box.shell()
    assert shell.alive
    result = await shell.run("echo hi")
    assert (result.status, result.exit_code, result.stdout) == (ExecStatus.EXITED, 0, b"hi\n")
    result = await shell.run(
        "echo out; (exit 3)" if not isinstance(box, FakeSandbox) else "#exit 3"
    )
    assert (result.exit_code, result.stdout) == (3, b"out\n")
    await shell.close()


async def test_a_shell_that_exited_says_so_then_and_later(box: Sandbox) -> None:
    shell = await box.shell()
    with pytest.raises(ShellEnded, match="code 5") as ended:
        await shell.run("exit 5")
    assert (ended.value.exit_code, ended.value.signal) == (5, None)
    assert not shell.alive
    with pytest.raises(ShellEnded, match="code 5"):
        await shell.run("echo hi")
    again = await box.shell()
    assert (await again.run("echo hi")).ok


async def test_a_closed_shell_is_over(box: Sandbox) -> None:
    shell = await box.shell()
    await shell.close()
    await shell.close()
    await shell.interrupt()
    assert not shell.alive
    with pytest.raises(ShellEnded, match="closed"):
        await shell.run("echo hi")


async def test_a_text_that_no_shell_can_take_is_refused(box: Sandbox) -> None:
    shell = await box.shell()
    for text in ("a\0b", "x" * ((16 << 20) + 1)):
        with pytest.raises(UserError, match="command"):
            await shell.run(text)
    assert (await shell.run("echo hi")).ok


async def test_calls_at_once_are_served_in_turn(box: Sandbox) -> None:
    shell = await box.shell()
    results = await asyncio.gather(*(shell.run("echo hi") for _ in range(10)))
    assert [result.stdout for result in results] == [b"hi\n"] * 10


async def test_a_shell_ends_with_its_box(box: Sandbox) -> None:
    shell = await box.shell()
    await box.close()
    with pytest.raises(SandboxLost):
        await shell.run("echo hi")
    with pytest.raises(SandboxLost):
        await box.shell()


# --- bash and sh --------------------------------------------------------------------------


@pytest.fixture
async def shell(box: Sandbox, request: pytest.FixtureRequest) -> Shell:
    """A real one; the fake has no state between commands."""
    return await box.shell()


REAL = pytest.mark.parametrize("box", [*BACKENDS, "sh"], indirect=True)


@REAL
async def test_state_lasts_between_commands(shell: Shell) -> None:
    assert await said(shell, "cd /tmp; x='a b'; f() { echo \"<$x>\"; }; export Y=1") == ""
    assert await said(shell, "pwd; f; sh -c 'echo $Y'") == "/tmp\n<a b>\n1\n"
    assert await said(shell, "false") == ""
    assert await said(shell, "echo $?; echo $?") == "1\n0\n"
    assert await said(shell, "set -- p q; umask 077") == ""
    assert await said(shell, "echo $# $2; umask") == "2 q\n0077\n"


@REAL
@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("echo 'open", 2, "nterminated quoted|matching"),
        ('echo "open', 2, "nterminated quoted|matching"),
        ("if true", 2, "yntax error"),
        ("echo a; )", 2, "yntax error"),
        ("f( {", 2, "yntax error"),
        ("set -u; echo $nope; echo not reached", None, "unbound|not set"),
        ("echo ${nope:?is missing}; echo not reached", None, "is missing"),
        ("echo $((1/0)); echo not reached", None, "(?i)division by zero|divi.*by 0"),
        ("no-such-program", 127, "not found"),
        ("cd /nowhere", None, "No such file|can't cd"),
    ],
)
async def test_a_mistake_is_a_result_and_the_shell_lives(
    shell: Shell, command: str, code: int | None, message: str
) -> None:
    result = await shell.run(command, timeout_s=10)
    assert result.status is ExecStatus.EXITED
    assert result.exit_code != 0
    assert code in (None, result.exit_code)
    assert result.stdout == b""
    assert re.search(message, result.stderr.decode())
    assert await said(shell, "echo alive") == "alive\n"


@REAL
async def test_changes_to_the_shell_itself_do_not_disturb_it(shell: Shell) -> None:
    for change in (
        "PS1='prompt> ' PS2='more> ' PS4='++'",
        "PROMPT_COMMAND='echo prompting'",
        "IFS=0123",
        "trap 'echo trapped' EXIT",
        "alias echo='echo'",
        "unset PATH; PATH=/usr/bin:/bin",
        "set -f; set -C",
        "TMOUT=1 HISTFILE=/dev/null",
        "cat <<EOF\nhere\nEOF",
    ):
        result = await shell.run(change, timeout_s=10)
        assert (result.exit_code, result.stderr) == (0, b""), change
        assert await said(shell, "echo alive") == "alive\n", change
        assert (await shell.run("(exit 7)", timeout_s=10)).exit_code == 7, change


@REAL
async def test_an_open_here_document_ends_with_its_text(shell: Shell) -> None:
    result = await shell.run("cat <<EOF\none\ntwo", timeout_s=10)
    assert result.stdout == b"one\ntwo\n"
    assert await said(shell, "echo alive") == "alive\n"


@REAL
async def test_redirections_of_the_shell_last_and_spare_its_channel(shell: Shell) -> None:
    assert await said(shell, "exec 4>/tmp/four; exec >/tmp/out; echo one; echo four >&4") == ""
    assert await said(shell, "echo two") == ""
    assert await said(shell, "exec >/dev/null 2>&1 4>&-; ls -d /nowhere") == ""
    result = await shell.run("(exit 6)")
    assert result.exit_code == 6
    with pytest.raises(ShellEnded):
        await shell.run("exec cat /tmp/out /tmp/four >&2")


@REAL
async def test_programs_inherit_the_three_standard_descriptors_alone(shell: Shell) -> None:
    names = (await said(shell, "ls /proc/self/fd")).split()
    assert names == ["0", "1", "2", "3"]  # the last is the directory that ls reads
    # A shell forked from this one has what it keeps for itself, and no more.
    assert await said(shell, "(ls /proc/self/fd); echo $(ls /proc/self/fd | wc -l)")


@REAL
async def test_bytes_are_exact(shell: Shell) -> None:
    every = "".join(f"\\{number:03o}" for number in range(256))
    result = await shell.run(f"printf '{every}'; printf '{every}' >&2")
    assert result.stdout == result.stderr == bytes(range(256))
    raw = bytes(set(range(1, 256)) - set(b"'")).decode("utf-8", "surrogateescape")
    assert (await shell.run(f"printf %s '{raw}'")).stdout == raw.encode("utf-8", "surrogateescape")


@REAL
async def test_a_command_of_a_megabyte_works(shell: Shell) -> None:
    result = await shell.run("x='" + "y" * (1 << 20) + "'; echo ${#x}", timeout_s=30)
    assert result.stdout == b"1048576\n"
    lines = "".join(f"line {number}\n" for number in range(80_000))
    result = await shell.run(f"cat <<'END' | wc -c\n{lines}END", timeout_s=30)
    assert int(result.stdout) == len(lines)


@REAL
async def test_output_comes_as_it_is_made_and_is_bounded(shell: Shell) -> None:
    seen: list[tuple[str, bytes]] = []
    command = "printf a; sleep 0.3; printf b >&2; sleep 0.3; seq 100000 >&2; printf c"
    result = await shell.run(command, on_output=lambda *chunk: seen.append(chunk))
    assert result.stdout == b"ac"
    assert (len(result.stderr), result.stderr_bytes) == (1 << 16, 588_896)
    assert result.limits_hit == {"output"}
    assert seen[:2] == [("stdout", b"a"), ("stderr", b"b")]
    assert b"".join(data for name, data in seen if name == "stderr") == result.stderr
    assert await said(shell, "echo alive") == "alive\n"


@REAL
async def test_a_flood_ends_the_command_and_spares_the_shell(shell: Shell) -> None:
    result = await shell.run("yes", timeout_s=20)
    assert (result.status, result.limits_hit) == (ExecStatus.OUTPUT_LIMIT, frozenset({"output"}))
    assert await said(shell, "echo alive") == "alive\n"


@REAL
async def test_at_a_timeout_the_command_dies_and_the_shell_lives(
    shell: Shell, box: NamespaceSandbox
) -> None:
    assert await said(shell, "x=kept; sleep 61 >/dev/null 2>&1 & echo job") == "job\n"
    before = len(processes_of_uid(box.host_uid))
    for command in (
        "echo so far; sleep 62; echo not reached",
        "echo so far; f() { sleep 62; echo not reached; }; f; echo not reached",
        "echo so far; (setsid sleep 62 &); setsid sleep 62 & sleep 62",
        "echo so far; while true; do sleep 0.01; done",
        "echo so far; sh -c 'trap \"\" INT TERM HUP; sleep 62; sleep 62'",
    ):
        result = await shell.run(command, timeout_s=0.3)
        assert (result.status, result.limits_hit) == (ExecStatus.TIMEOUT, frozenset({"wall"}))
        assert result.stdout == b"so far\n", command
        assert len(processes_of_uid(box.host_uid)) == before, command
        assert shell.alive, command
    assert await said(shell, "echo $x") == "kept\n"


@REAL
async def test_a_shell_that_cannot_be_saved_is_over_and_says_so(
    shell: Shell, box: NamespaceSandbox
) -> None:
    before = len(processes_of_uid(box.host_uid))
    result = await shell.run("trap '' 2 61; while :; do :; done", timeout_s=0.2)
    assert (result.status, result.limits_hit) == (ExecStatus.TIMEOUT, frozenset({"wall"}))
    assert not shell.alive
    assert len(processes_of_uid(box.host_uid)) == before - 1
    with pytest.raises(ShellEnded, match="could not be ended"):
        await shell.run("echo hi")
    assert (await box.run(["true"])).ok


@REAL
async def test_ctrl_c_ends_the_command_alone(shell: Shell) -> None:
    for command in ("sleep 60; echo not reached", "while true; do sleep 0.01; done"):
        for _ in range(5):
            running = asyncio.create_task(shell.run(command, timeout_s=20))
            await asyncio.sleep(0.2)
            await shell.interrupt()
            result = await running
            assert (result.status, result.stdout) == (ExecStatus.EXITED, b"")
            assert result.exit_code in (130, 2), command
    assert await said(shell, "echo alive") == "alive\n"


@REAL
async def test_cancelling_the_call_ends_the_command(shell: Shell, box: NamespaceSandbox) -> None:
    before = len(processes_of_uid(box.host_uid))
    running = asyncio.create_task(shell.run("sleep 60"))
    waiting = asyncio.create_task(shell.run("echo never"))
    await asyncio.sleep(0.2)
    waiting.cancel()
    running.cancel()
    for task in (running, waiting):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await said(shell, "echo alive") == "alive\n"
    assert len(processes_of_uid(box.host_uid)) == before


@REAL
async def test_the_error_of_a_callback_comes_back(shell: Shell) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await shell.run("echo x; sleep 60", on_output=broken)
    assert await said(shell, "echo alive") == "alive\n"


@REAL
async def test_what_jobs_write_between_commands_is_dropped_and_counted(shell: Shell) -> None:
    result = await shell.run("(sleep 0.3; printf late) & printf now")
    assert result.stdout == b"now"
    await asyncio.sleep(0.6)
    assert shell.dropped_bytes == 4
    assert await said(shell, "echo next") == "next\n"
    assert (await shell.run("(sleep 0.1; exec yes flood) &")).ok
    await asyncio.sleep(0.3)
    assert shell.dropped_bytes > 1 << 16
    result = await shell.run("kill $!; (exit 9)")
    assert result.exit_code == 9


@REAL
@pytest.mark.parametrize(
    ("command", "code", "signal"),
    [
        ("echo out; kill -9 $$", None, 9),
        ("echo out; exec sh -c 'exit 4'", 4, None),
        ("echo out; exec sh -c 'kill -15 $$'", None, 15),
        ("echo out; f() { exit 6; }; f", 6, None),
    ],
)
async def test_how_the_shell_ended_is_told_with_the_output(
    shell: Shell, command: str, code: int | None, signal: int | None
) -> None:
    with pytest.raises(ShellEnded) as ended:
        await shell.run(command, timeout_s=10)
    assert (ended.value.exit_code, ended.value.signal) == (code, signal)
    assert ended.value.stdout == b"out\n"
    assert not shell.alive
    with pytest.raises(ShellEnded):
        await shell.run("true")


@REAL
async def test_a_shell_ends_as_a_result_when_memory_runs_out(
    shell: Shell, box: NamespaceSandbox
) -> None:
    hog = "python3 -c 'x = [bytearray(1 << 20) for _ in range(10000)]'"
    assert (await shell.run(hog, timeout_s=30)).status is ExecStatus.OOM
    with pytest.raises(SandboxLost):
        await shell.run("true")


@REAL
async def test_shells_side_by_side_do_not_touch_each_other(box: Sandbox) -> None:
    shells = [await box.shell(env={"N": str(number)}, cwd="/tmp") for number in range(4)]
    results = await asyncio.gather(*(shell.run("echo $N; pwd") for shell in shells))
    assert [r.stdout for r in results] == [f"{number}\n/tmp\n".encode() for number in range(4)]
    slow = asyncio.create_task(shells[0].run("sleep 0.5; echo slow"))
    assert (await shells[1].run("sleep 60", timeout_s=0.2)).status is ExecStatus.TIMEOUT
    await shells[2].close()
    assert (await slow).stdout == b"slow\n"
    assert await said(shells[3], "echo alive") == "alive\n"


@REAL
async def test_closing_ends_what_the_shell_started(box: NamespaceSandbox) -> None:
    before = len(processes_of_uid(box.host_uid))
    shell = await box.shell()
    assert (await shell.run("(setsid sleep 61 &); sleep 61 & setsid sleep 61 &")).ok
    running = asyncio.create_task(shell.run("sleep 62"))
    await asyncio.sleep(0.1)
    await shell.close()
    with pytest.raises(ShellEnded, match="closed"):
        await running
    assert len(processes_of_uid(box.host_uid)) == before


@REAL
async def test_on_a_terminal_programs_are_interactive(box: Sandbox) -> None:
    shell = await box.shell(pty=PtySize(20, 90))
    shown = await said(shell, "test -t 0 && test -t 1 && test -t 2 && echo yes; stty size")
    assert shown == "yes\r\n20 90\r\n"
    assert len(await said(shell, "seq 5000")) == len("".join(f"{n}\r\n" for n in range(1, 5001)))
    running = asyncio.create_task(shell.run("sleep 60; echo not reached", timeout_s=20))
    await asyncio.sleep(0.2)
    await shell.interrupt()
    assert (await running).exit_code in (130, 2)
    assert (await shell.run("sleep 60", timeout_s=0.2)).status is ExecStatus.TIMEOUT
    assert await said(shell, "echo alive") == "alive\r\n"
    with pytest.raises(ShellEnded):
        await shell.run("exit 0")


# --- bash alone ---------------------------------------------------------------------------


async def test_errexit_ends_the_text_and_not_the_shell(bash: Shell) -> None:
    result = await bash.run("set -e\nf() { false; echo not reached; }\nf\necho not reached")
    assert (result.exit_code, result.stdout) == (1, b"")
    assert (await bash.run("echo $-; (exit 4); echo not reached")).exit_code == 4
    assert await said(bash, "false || echo yes; if false; then :; fi; echo $-") != ""
    assert "e" in (await said(bash, "echo $-"))
    assert await said(bash, "set +e; false; echo reached") == "reached\n"


async def test_tracing_shows_the_text_alone(bash: Shell) -> None:
    result = await bash.run("set -x; echo one")
    assert (result.stdout, result.stderr) == (b"one\n", b"++ echo one\n")
    result = await bash.run("echo two")
    assert (result.stdout, result.stderr) == (b"two\n", b"++ echo two\n")
    assert (await bash.run("set +x; set -v; echo x")).stdout == b"x\n"
    assert (await bash.run("echo three")).stderr == b"echo three\n"


async def test_arrays_traps_and_jobs_last(bash: Shell) -> None:
    assert await said(bash, "a=(1 '2 3'); declare -A m=([k]=v); trap 'echo usr' USR1") == ""
    assert await said(bash, "echo ${#a[@]} ${m[k]}; kill -USR1 $$") == "2 v\nusr\n"
    assert await said(bash, "sleep 60 & p=$!; kill -0 $p && echo runs") == "runs\n"
    assert await said(bash, "jobs -p | grep -cx $p; kill $p; wait $p; echo $?") == "1\n143\n"
    assert "not reached" not in await said(bash, "return 3; echo not reached")


async def test_loops_of_builtins_end_too(bash: Shell) -> None:
    for command in ("while :; do :; done", "f() { while :; do :; done; }; f; echo not reached"):
        assert (await bash.run(command, timeout_s=0.2)).status is ExecStatus.TIMEOUT
        running = asyncio.create_task(bash.run(command, timeout_s=20))
        await asyncio.sleep(0.2)
        await bash.interrupt()
        assert (await running).exit_code == 130
    assert bash.alive


async def test_a_shell_that_lost_its_descriptors_is_over(bash_box: NamespaceSandbox) -> None:
    shell = await bash_box.shell()
    with pytest.raises(ShellEnded):
        await shell.run("for n in /proc/$$/fd/*; do eval exec ${n##*/}'>&-'; done", timeout_s=5)
    assert not shell.alive
    assert (await bash_box.run(["true"])).ok


async def test_nonsense_on_the_status_channel_ends_the_shell(bash_box: NamespaceSandbox) -> None:
    shell = await bash_box.shell()
    forge = "for n in /proc/$$/fd/*; do echo 12 7 hi x >$n; done 2>/dev/null; sleep 5"
    with pytest.raises(ShellEnded):
        await shell.run(forge, timeout_s=10)
    flood = "for n in /proc/$$/fd/1?; do head -c 100000 /dev/zero >$n & done 2>/dev/null; sleep 5"
    shell = await bash_box.shell()
    with pytest.raises(ShellEnded):
        await shell.run(flood, timeout_s=10)
    assert (await bash_box.run(["true"])).ok


async def test_a_shell_of_another_user(bash_box: NamespaceSandbox) -> None:
    if bash_box.user != "root":
        with pytest.raises(UserError, match="user"):
            await bash_box.shell(user="nobody")
        return
    shell = await bash_box.shell(user="nobody", cwd="/tmp", pty=PtySize())
    assert await said(shell, "id -un; echo $HOME") == "nobody\r\n/nonexistent\r\n"
    assert (await said(shell, "stat -c %U $(tty)")) == "nobody\r\n"
    result = await shell.run("(setsid sleep 62 &); sleep 61", timeout_s=0.3)
    assert (result.status, shell.alive) == (ExecStatus.TIMEOUT, True)
    assert (await bash_box.run(["pgrep", "-c", "sleep"])).stdout in (b"0\n", b"")
    await shell.close()
