"""Running commands: when a call ends, what it returns, and what is dead by then."""

import asyncio
import time

import pytest

from tests.boxes import PYTHON, processes_of_uid
from tests.timing import scaled
from trialyard.core.errors import UserError
from trialyard.core.sandbox import ExecStatus
from trialyard.sandboxes.namespace import NamespaceSandbox

OWN_PROCESSES = 2
"""bubblewrap and PID 1."""


async def test_the_call_ends_with_the_leader_though_a_child_holds_the_pipe(
    box: NamespaceSandbox,
) -> None:
    started = time.monotonic()
    result = await box.run(["sh", "-c", "sleep 60 & echo started"])
    assert result.ok
    assert result.stdout == b"started\n"
    assert time.monotonic() - started < scaled(1)
    assert len(processes_of_uid(box.host_uid)) == OWN_PROCESSES + 1  # it lives on


async def test_at_a_timeout_every_descendant_is_dead(box: NamespaceSandbox) -> None:
    code = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: time.sleep(1)
        os._exit(0)
while True: time.sleep(1)
"""
    result = await box.run([PYTHON, "-I", "-S", "-c", code], timeout_s=scaled(0.5))
    assert result.status is ExecStatus.TIMEOUT
    assert len(processes_of_uid(box.host_uid)) == OWN_PROCESSES
    assert (await box.run(["true"])).ok


async def test_a_fork_race_loses(box: NamespaceSandbox) -> None:
    code = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    result = await box.run([PYTHON, "-I", "-S", "-c", code], timeout_s=scaled(0.5))
    assert result.status is ExecStatus.TIMEOUT
    assert len(processes_of_uid(box.host_uid)) == OWN_PROCESSES


async def test_killing_one_command_spares_the_others_and_their_daemons(
    box: NamespaceSandbox,
) -> None:
    before = "nohup sleep 61 >/dev/null 2>&1 &"
    assert (await box.run(["sh", "-c", before])).ok
    neighbour = asyncio.create_task(
        box.run(["sh", "-c", f"sleep {scaled(1.5, at_most_s=20)}; echo done"])
    )
    await asyncio.sleep(0.1)
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(62)
    os._exit(0)
time.sleep(62)
"""
    timeout_s = scaled(0.5, at_most_s=10)
    result = await box.run([PYTHON, "-I", "-S", "-c", code], timeout_s=timeout_s)
    assert result.status is ExecStatus.TIMEOUT
    assert not neighbour.done()
    assert (await neighbour).stdout == b"done\n"
    listing = await box.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    assert b"sleep 61" in listing.stdout
    assert b"time.sleep(62)" not in listing.stdout


async def test_an_orphan_cannot_pass_for_an_earlier_command(box: NamespaceSandbox) -> None:
    assert (await box.run(["sh", "-c", "nohup sleep 61 >/dev/null 2>&1 &"])).ok
    code = """
import os, resource, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        soft, hard = resource.getrlimit(10)
        try: resource.setrlimit(10, (hard + 5, hard + 5))
        except (OSError, ValueError): pass
        resource.setrlimit(10, (hard - 5, hard - 5))
        time.sleep(62)
    os._exit(0)
time.sleep(62)
"""
    result = await box.run([PYTHON, "-I", "-c", code], timeout_s=scaled(0.7, at_most_s=30))
    assert result.status is ExecStatus.TIMEOUT
    assert len(processes_of_uid(box.host_uid)) == OWN_PROCESSES + 1


async def test_no_stdin_is_end_of_file(box: NamespaceSandbox) -> None:
    assert (await box.run(["cat"], timeout_s=scaled(5))).ok
    assert (await box.run(["wc", "-c"], stdin=b"abc")).stdout == b"3\n"


async def test_big_input_arrives_whole_and_unread_input_blocks_nobody(
    box: NamespaceSandbox,
) -> None:
    data = bytes(range(256)) * 8192
    result = await box.run(["md5sum"], stdin=data)
    assert result.ok
    assert len(result.stdout) > 32
    assert (await box.run(["wc", "-c"], stdin=data)).stdout == b"2097152\n"
    started = time.monotonic()
    assert (await box.run(["true"], stdin=data)).ok
    assert time.monotonic() - started < scaled(2)


async def test_both_streams_are_drained_at_once(box: NamespaceSandbox) -> None:
    code = "import sys\nsys.stderr.write('e' * 300000)\nsys.stdout.write('o' * 300000)"
    result = await box.run([PYTHON, "-I", "-S", "-c", code])
    assert (result.stdout, result.stderr) == (b"o" * 300000, b"e" * 300000)


async def test_output_is_streamed_and_a_broken_callback_ends_the_command(
    box: NamespaceSandbox,
) -> None:
    heard: list[tuple[str, bytes]] = []
    await box.run(["sh", "-c", "echo a; echo b >&2"], on_output=lambda *chunk: heard.append(chunk))
    assert sorted(heard) == [("stderr", b"b\n"), ("stdout", b"a\n")]

    def broken(name: str, data: bytes) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await box.run(["sh", "-c", "echo a; sleep 60"], on_output=broken)
    assert len(processes_of_uid(box.host_uid)) == OWN_PROCESSES


async def test_cancelling_the_call_kills_the_command(box: NamespaceSandbox) -> None:
    task = asyncio.create_task(box.run(["sh", "-c", "sleep 60 & sleep 60"]))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(processes_of_uid(box.host_uid)) == OWN_PROCESSES
    assert (await box.run(["true"])).ok


async def test_many_commands_at_once(box: NamespaceSandbox) -> None:
    results = await asyncio.gather(*(box.run(["echo", str(i)]) for i in range(30)))
    assert [result.stdout for result in results] == [f"{i}\n".encode() for i in range(30)]


async def test_arguments_longer_than_a_datagram(box: NamespaceSandbox) -> None:
    words = ["x" * 1000] * 500
    assert (await box.run(["sh", "-c", "echo $#", "sh", *words])).stdout == b"500\n"
    result = await box.run(["true", "x" * 200_000])
    assert result.exit_code == 126
    assert b"Argument list too long" in result.stderr


@pytest.mark.parametrize("cwd", ["/proc/self/fd/3", "/nowhere\0", "/proc/1/root"])
async def test_a_cwd_outside_is_refused(box: NamespaceSandbox, cwd: str) -> None:
    with pytest.raises(UserError, match="cwd"):
        await box.run(["pwd"], cwd=cwd)


async def test_cwd_counts_from_the_workdir(box: NamespaceSandbox) -> None:
    await box.write("sub/x", b"")
    assert (await box.run(["pwd"])).stdout == b"/work\n"
    assert (await box.run(["pwd"], cwd="sub")).stdout == b"/work/sub\n"
    assert (await box.run(["pwd"], cwd="/tmp")).stdout == b"/tmp\n"


@pytest.mark.parametrize("env", [{"A": "\0"}, {"": "x"}, {"A=B": "x"}])
async def test_bad_env_names_the_field(box: NamespaceSandbox, env: dict[str, str]) -> None:
    with pytest.raises(UserError, match="env"):
        await box.run(["true"], env=env)


async def test_a_script_without_permission_exits_with_126(box: NamespaceSandbox) -> None:
    await box.write("plain", b"#!/bin/sh\n")
    assert (await box.run(["./plain"])).exit_code == 126
    await box.write("script", b"#!/bin/sh\nexit 7\n", mode=0o755)
    assert (await box.run(["./script"])).exit_code == 7
