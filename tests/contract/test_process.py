"""What every `Process` promises: boxes of both backends, and the fake as far as it can."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.boxes import BACKENDS, namespace_pool, processes_of_uid
from trialyard.core.errors import SandboxLost, StdinClosed, UserError
from trialyard.core.process import PtySize
from trialyard.core.sandbox import BoxUser, ExecResult, ExecStatus, Limits, Sandbox, SandboxPool
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.testing.pool import FakePool
from trialyard.testing.sandbox import FakeCall, exited


def program(call: FakeCall) -> ExecResult:
    return exited(3, b"out") if call.argv[0] == "sh" else exited(0, call.stdin)


@pytest.fixture(params=[*BACKENDS, "fake"])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[SandboxPool]:
    made: SandboxPool = (
        FakePool(program)
        if request.param == "fake"
        else namespace_pool(max_boxes=1, backend=request.param)
    )
    yield made
    await made.close()
    assert made.counters()["leaked"] == 0


@pytest.fixture
async def box(pool: SandboxPool) -> AsyncIterator[Sandbox]:
    limits = Limits(output_bytes=1 << 16)
    async with pool.acquire(image="host", limits=limits, owner="test") as sandbox:
        yield sandbox


@pytest.fixture(params=[*BACKENDS, "root"])
async def real_box(request: pytest.FixtureRequest) -> AsyncIterator[NamespaceSandbox]:
    is_root = request.param == "root"
    made = namespace_pool(max_boxes=1, backend="namespace" if is_root else request.param)
    user: BoxUser = "root" if is_root else "user"
    limits = Limits(output_bytes=1 << 16)
    async with made.acquire(image="host", limits=limits, owner="test", user=user) as sandbox:
        assert isinstance(sandbox, NamespaceSandbox)
        yield sandbox
    await made.close()
    assert made.counters()["leaked"] == 0


async def until(holds: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Wait for a condition that is on its way."""
    for _ in range(int(timeout_s / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


async def test_every_wait_gives_the_same_result(box: Sandbox) -> None:
    process = await box.start(["sh", "-c", "printf out; exit 3"])
    first, second = await asyncio.gather(process.wait(), process.wait(5))
    assert first is second is await process.wait()
    assert (first.status, first.exit_code, first.stdout) == (ExecStatus.EXITED, 3, b"out")
    assert not process.running
    assert process.output() == (b"out", b"")


async def test_stdin_is_written_until_it_is_closed(box: Sandbox) -> None:
    process = await box.start(["cat"], stdin=None)
    await process.write(b"a\x00")
    await process.write(b"b")
    assert process.running
    await process.close_stdin()
    await process.close_stdin()
    assert (await process.wait(5)).stdout == b"a\x00b"
    with pytest.raises(StdinClosed):
        await process.write(b"c")


async def test_stdin_that_was_given_or_not_asked_for_takes_no_more(box: Sandbox) -> None:
    for given in (b"", b"abc"):
        process = await box.start(["cat"], stdin=given)
        with pytest.raises(StdinClosed):
            await process.write(b"more")
        assert (await process.wait(5)).stdout == given


async def test_waiting_may_stop_and_the_process_runs_on(box: Sandbox) -> None:
    process = await box.start(["cat"], stdin=None)
    with pytest.raises(TimeoutError):
        await process.wait(0.05)
    waiting = asyncio.create_task(process.wait())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert process.running
    await process.kill()
    await process.kill()
    assert (await process.wait()).status is ExecStatus.CANCELLED


async def test_a_signal_reaches_it(box: Sandbox) -> None:
    process = await box.start(["cat"], stdin=None)
    await process.signal(15)
    result = await process.wait(5)
    assert (result.status, result.signal) == (ExecStatus.SIGNALED, 15)
    await process.signal(15)


@pytest.mark.parametrize("number", [0, -9, 65, 1 << 40])
async def test_a_signal_that_is_none_is_refused(box: Sandbox, number: int) -> None:
    process = await box.start(["cat"], stdin=None)
    with pytest.raises(UserError, match="signal"):
        await process.signal(number)
    await process.kill()


@pytest.mark.parametrize("size", [(0, 80), (24, 0), (-1, 80), (24, 1 << 16), (24, 8.5)])
def test_a_terminal_without_a_sensible_size_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="pty"):
        PtySize(*size)


async def test_without_a_terminal_there_is_nothing_to_resize(box: Sandbox) -> None:
    process = await box.start(["true"])
    with pytest.raises(UserError, match="pty"):
        await process.resize(PtySize())


async def test_it_ends_with_its_box(box: Sandbox) -> None:
    process = await box.start(["cat"], stdin=None)
    await box.close()
    with pytest.raises(SandboxLost):
        await process.wait(5)
    assert not process.running
    with pytest.raises(SandboxLost):
        await box.start(["true"])


async def test_only_the_user_of_the_box_is_there(box: Sandbox) -> None:
    for user in ("user", 1000, "1000"):
        assert (await box.run(["true"], user=user)).ok
    for other in ("root", 0, "nobody", "stranger", -1, 1 << 40, "", "a\0b", "a:b", True):
        with pytest.raises(UserError, match="user"):
            await box.run(["true"], user=other)


# --- what needs processes -----------------------------------------------------------------


async def test_output_is_followed_as_it_comes(real_box: NamespaceSandbox) -> None:
    seen: list[tuple[str, bytes]] = []
    process = await real_box.start(
        ["sh", "-c", "printf one; printf err >&2; read x; printf two"],
        stdin=None,
        on_output=lambda stream, data: seen.append((stream, data)),
    )
    await until(lambda: len(seen) == 2)
    assert process.output() == (b"one", b"err")
    await process.write(b"\n")
    assert (await process.wait(5)).stdout == b"onetwo"
    assert sorted(seen) == [("stderr", b"err"), ("stdout", b"one"), ("stdout", b"two")]


async def test_a_program_that_does_not_read_holds_up_the_writer_alone(
    real_box: NamespaceSandbox,
) -> None:
    process = await real_box.start(["sleep", "60"], stdin=None)
    writing = asyncio.create_task(process.write(b"x" * (1 << 20)))
    assert (await real_box.run(["true"])).ok
    assert not writing.done()
    await process.kill()
    with pytest.raises(StdinClosed):
        await writing
    closer = await real_box.start(["sh", "-c", "exec <&-; echo closed; sleep 60"], stdin=None)
    await until(lambda: closer.output()[0])
    await asyncio.sleep(0.1)  # PID 1 lets go of its copy a moment after the start
    with pytest.raises(StdinClosed):
        await closer.write(b"x")


async def test_kill_ends_everything_and_nothing_else(real_box: NamespaceSandbox) -> None:
    before = len(processes_of_uid(real_box.host_uid))
    other = await real_box.start(["sleep", "60"])
    process = await real_box.start(
        ["sh", "-c", "setsid sleep 61 & (setsid sleep 61 &) ; echo up; sleep 61"]
    )
    await until(lambda: process.output()[0])
    assert len(processes_of_uid(real_box.host_uid)) == before + 1 + 4
    await process.kill()
    assert len(processes_of_uid(real_box.host_uid)) == before + 1
    assert other.running


async def test_kill_ends_daemons_that_outlived_it(real_box: NamespaceSandbox) -> None:
    before = len(processes_of_uid(real_box.host_uid))
    process = await real_box.start(["sh", "-c", "setsid sleep 61 >/dev/null 2>&1 &"])
    assert (await process.wait(5)).ok
    assert len(processes_of_uid(real_box.host_uid)) == before + 1
    await process.kill()
    assert len(processes_of_uid(real_box.host_uid)) == before
    assert (await process.wait()).ok


async def test_limits_hold_in_the_background(real_box: NamespaceSandbox) -> None:
    slow = await real_box.start(["sleep", "60"], timeout_s=0.2)
    result = await slow.wait(5)
    assert (result.status, result.limits_hit) == (ExecStatus.TIMEOUT, frozenset({"wall"}))
    flood = await real_box.start(["sh", "-c", "yes"])
    result = await flood.wait(20)
    assert (result.status, result.limits_hit) == (ExecStatus.OUTPUT_LIMIT, frozenset({"output"}))
    assert len(result.stdout) == 1 << 16


async def test_many_run_side_by_side(real_box: NamespaceSandbox) -> None:
    processes = [await real_box.start(["cat"], stdin=None) for _ in range(40)]
    for number, process in enumerate(processes):
        await process.write(str(number).encode())
        await process.close_stdin()
    results = await asyncio.gather(*(process.wait(10) for process in processes))
    assert [result.stdout for result in results] == [str(n).encode() for n in range(40)]


async def test_on_a_terminal_programs_are_interactive(real_box: NamespaceSandbox) -> None:
    script = """
test -t 0 && test -t 1 && test -t 2 && echo tty
stty size
: < /dev/tty && echo controlling
trap 'stty size' WINCH
echo ready
read line; echo "got $line"
while :; do sleep 0.05; done
"""
    process = await real_box.start(["bash", "-c", script], pty=PtySize(30, 100))
    await until(lambda: b"ready" in process.output()[0])
    await process.resize(PtySize(11, 22))
    await process.write("hé\n".encode())
    await until(lambda: b"11 22" in process.output()[0] and b"got" in process.output()[0])
    await process.write(b"\x03")
    result = await process.wait(5)
    assert (result.status, result.signal) == (ExecStatus.SIGNALED, 2)
    shown = result.stdout.decode().replace("\r\n", "\n")
    assert shown.startswith("tty\n30 100\ncontrolling\nready\n")
    assert "got hé\n" in shown
    assert result.stderr == b""


async def test_a_terminal_ends_its_input_with_ctrl_d_and_hangs_up(
    real_box: NamespaceSandbox,
) -> None:
    before = len(processes_of_uid(real_box.host_uid))
    process = await real_box.start(["cat"], pty=PtySize(), stdin=b"typed\n")
    await process.close_stdin()
    result = await process.wait(5)
    assert result.ok
    assert result.stdout.count(b"typed\r\n") == 2  # the echo, and what cat wrote
    left = await real_box.start(["sh", "-c", "sleep 61 & exec sleep 61"], pty=PtySize())
    await left.kill()
    assert len(processes_of_uid(real_box.host_uid)) == before


async def test_terminals_go_with_their_processes_and_are_bounded(
    real_box: NamespaceSandbox,
) -> None:
    for _ in range(3):
        process = await real_box.start(["tty"], pty=PtySize())
        assert (await process.wait(5)).stdout == b"/dev/pts/0\r\n"
    greedy = "import os\nn = 0\ntry:\n  while True: os.openpty(); n += 1\nexcept OSError: print(n)"
    result = await real_box.run(["python3", "-c", greedy])
    assert 16 <= int(result.stdout) <= 64  # the host's are shared by all boxes
