"""A run directory: created once, held by one process, read back as written."""

import subprocess
import sys
from pathlib import Path

import pytest

from trialyard.core.clock import SystemClock
from trialyard.core.errors import ConfigError, NotFoundError
from trialyard.run.config import RunConfig
from trialyard.run.directory import RunDirectory
from trialyard.run.events import EventFile, read_events


def test_a_run_reads_back_with_its_configuration(tmp_path: Path) -> None:
    config = RunConfig(name="mine", seed=7)
    RunDirectory.create(tmp_path / "r", config)
    assert RunDirectory.open(tmp_path / "r")[1] == config


def test_creating_over_a_run_is_refused_with_the_way_out(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, RunConfig())
    with pytest.raises(ConfigError, match="trialyard resume"):
        RunDirectory.create(tmp_path, RunConfig())


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run at"):
        RunDirectory.open(tmp_path / "none")


def test_only_one_process_holds_a_run_and_its_death_lets_go(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, RunConfig())
    program = (
        "import sys, time; from pathlib import Path;"
        "from trialyard.run.directory import RunDirectory;"
        "d, _ = RunDirectory.open(Path(sys.argv[1]))\n"
        "with d.locked(): print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="another process"), directory.locked():
            pass
    finally:
        other.kill()
        other.communicate()
    with directory.locked():
        pass


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    sink = EventFile(file, SystemClock())
    sink.emit("step", step=1)
    sink.close()
    with file.open("a") as raw:
        raw.write('{"kind": "step", "st')
    sink = EventFile(file, SystemClock())
    sink.emit("step", step=2)
    sink.close()
    assert [event["step"] for event in read_events(file)] == [1, 2]
