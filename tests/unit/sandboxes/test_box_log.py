"""What observers of a pool are told, what the log keeps of it, and the metrics."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.boxes import namespace_pool
from trialyard.cli.main import main
from trialyard.core.errors import FileAccessError, ResourceExhausted, UserError
from trialyard.core.sandbox import ExecResult, ExecStatus, Limits
from trialyard.sandboxes.box_events import BoxEvent, CommandEnded, Refused
from trialyard.sandboxes.box_log import BoxLog, read_box_log
from trialyard.sandboxes.observed import ObservedSandbox
from trialyard.sandboxes.pool_metrics import PoolMetrics
from trialyard.testing.sandbox import FakeSandbox, exited, scripted


def command(number: int, argv: tuple[str, ...] = ("true",)) -> CommandEnded:
    result = ExecResult(ExecStatus.EXITED, exit_code=number)
    return CommandEnded(f"box-{number % 3}", "o", "run", argv, (), None, 0, 0.5, result)


async def test_a_pool_tells_of_every_command_and_file_but_no_secret(tmp_path: Path) -> None:
    pool = namespace_pool(max_boxes=1)
    log, metrics = BoxLog(tmp_path / "boxes"), PoolMetrics(pool)
    pool.observe(log.on_event)
    async with pool.acquire(image="host", limits=Limits(pids=40), owner="run/1") as box:
        await box.run(["sh", "-c", "exit 3"], env={"TOKEN": "s3cret"}, stdin=b"pa55word")
        await box.run(["sleep", "9"], timeout_s=0.1)
        await box.write("a", b"c0ntent")
        await box.upload({"x": b"1", "y": b"22"}, directory="d")
        with pytest.raises(FileAccessError):
            await box.read("nothing")
        with pytest.raises(UserError):
            await box.run([])
        task = asyncio.create_task(box.run(["sleep", "60"]))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})
        with pytest.raises(ResourceExhausted):
            await pool.acquire(image="host", limits=Limits(), owner="two", timeout_s=0).__aenter__()
        id = box.id
    await pool.close()
    log.close()
    events = list(read_box_log(tmp_path / "boxes"))
    assert [event["event"] for event in events] == [
        "started", "leased", "command", "command", "file", "file", "file", "command", "command",
        "refused", "ended",
    ]  # fmt: skip
    leased, first, timed_out = events[1:4]
    assert (leased["box"], leased["owner"], leased["limits"]["pids"]) == (id, "run/1", 40)
    assert (first["argv"], first["env"], first["stdin_bytes"]) == (
        ["sh", "-c", "exit 3"],
        ["TOKEN"],
        8,
    )
    assert (first["status"], first["exit_code"], first["signal"]) == ("exited", 3, None)
    assert first["usage"]["wall_s"] > 0
    assert first["at_s"] >= first["started_s"] > 1e9
    assert (timed_out["status"], timed_out["limits_hit"]) == ("timeout", ["wall"])
    write, upload, read = events[4:7]
    assert (write["operation"], write["path"], write["size_bytes"]) == ("write", "a", 7)
    assert (upload["files"], upload["size_bytes"], upload["path"]) == (2, 3, "d")
    assert "nothing" in read["error"]
    assert [event["error"] for event in events[7:9]] == [events[7]["error"], "cancelled"]
    assert "argv" in events[7]["error"]
    raw = b"".join(path.read_bytes() for path in (tmp_path / "boxes").iterdir())
    for secret in (b"s3cret", b"pa55word", b"c0ntent"):
        assert secret not in raw
    assert [event["event"] for event in read_box_log(tmp_path / "boxes", id)] == [
        event["event"] for event in events if event["event"] != "refused"
    ]
    text = metrics.text()
    for line in (
        "trialyard_boxes_created_total 1",
        "trialyard_boxes_destroyed_total 1",
        "trialyard_boxes_leaked_total 0",
        "trialyard_boxes_live 0",
        "trialyard_box_queue_length 0",
        "trialyard_boxes_memory_bytes 0",
        "trialyard_box_start_seconds_count 1",
        "trialyard_box_acquire_seconds_count 1",
        "trialyard_box_claims_refused_total 1",
        'trialyard_box_commands_total{status="exited"} 1',
        'trialyard_box_commands_total{status="timeout"} 1',
        'trialyard_box_commands_total{status="cancelled"} 1',
        'trialyard_box_commands_total{status="error"} 1',
        'trialyard_box_limits_hit_total{limit="wall"} 1',
        'trialyard_box_file_operations_total{operation="write"} 1',
    ):
        assert line in text.splitlines()


def test_the_log_is_bounded_and_the_newest_stays(tmp_path: Path) -> None:
    log = BoxLog(tmp_path, max_bytes=16_000)
    for number in range(500):
        log.on_event(command(number))
    log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000
    codes = [event["exit_code"] for event in read_box_log(tmp_path)]
    assert codes == list(range(500 - len(codes), 500))
    assert len(codes) >= 30


def test_monstrous_arguments_are_cut(tmp_path: Path) -> None:
    log = BoxLog(tmp_path)
    log.on_event(command(0, ("x" * 10_000_000, *["y"] * 100_000)))
    log.close()
    [event] = read_box_log(tmp_path)
    assert event["argv_cut"]
    assert len(json.dumps(event)) < 10_000


def test_a_new_process_begins_a_new_segment_after_a_torn_one(tmp_path: Path) -> None:
    first = BoxLog(tmp_path)
    first.on_event(command(1))
    first.close()
    [segment] = tmp_path.iterdir()
    segment.write_bytes(segment.read_bytes() + b'{"event": "comm')
    second = BoxLog(tmp_path)
    second.on_event(command(2))
    second.close()
    assert [event["exit_code"] for event in read_box_log(tmp_path)] == [1, 2]


def test_a_log_that_cannot_be_written_is_counted_and_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = BoxLog(tmp_path / "file" / "below")
    log.on_event(Refused("o", 1, 0.0))
    assert log.dropped == 1
    log = BoxLog(tmp_path / "log")
    log.on_event(command(1))
    os.close(log._fd)
    log._fd = os.open("/dev/full", os.O_WRONLY)
    log.on_event(command(2))
    assert log.dropped == 1
    log.close()


def test_what_was_told_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from trialyard.sandboxes.box_log import BoxLog\n"
        "from trialyard.sandboxes.box_events import Refused\n"
        "log = BoxLog(Path(sys.argv[1]))\n"
        "for number in range(100): log.on_event(Refused('o', number, 0.0))\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert [event["count"] for event in read_box_log(tmp_path)] == list(range(100))


def test_the_log_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "log", str(tmp_path)]) == 2
    assert "no log of boxes" in capsys.readouterr().err
    log = BoxLog(tmp_path / "boxes")
    for number in range(4):
        log.on_event(command(number, ("echo", str(number))))
    log.close()
    assert main(["sandbox", "log", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "exited 1: 'echo 1'" in lines[1]
    assert main(["sandbox", "log", str(tmp_path), "box-0", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["argv"] for event in events] == [["echo", "0"], ["echo", "3"]]
    assert main(["sandbox", "log", str(tmp_path), "box-9"]) == 2
    assert "box-9" in capsys.readouterr().err


async def test_commands_of_shells_and_in_the_background_are_told_when_they_end() -> None:
    told: list[BoxEvent] = []
    inner = FakeSandbox(scripted({("sh", "-c", "cd /tmp"): exited(7)}))
    box = ObservedSandbox(inner, "o", told.append)
    shell = await box.shell()
    assert (await shell.run("cd /tmp")).exit_code == 7
    process = await box.start(["sleep", "9"], stdin=None)
    assert process is inner.processes[-1]
    await asyncio.sleep(0)
    assert len(told) == 1
    inner.lose()
    for _ in range(5):
        await asyncio.sleep(0)
    commands = [event for event in told if isinstance(event, CommandEnded)]
    assert [(event.via, event.argv) for event in commands] == [
        ("shell", ("cd /tmp",)), ("start", ("sleep", "9")),
    ]  # fmt: skip
    assert "SandboxLost: box" in commands[1].error
