"""A short training run with real boxes, real tokens and real steps; interrupted and killed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

TRIALYARD = [sys.executable, "-m", "trialyard.cli.main"]
SHORT = {
    "tasks.train": 64,
    "tasks.held_out": 12,
    "sft.demonstrations": 100,
    "sft.steps": 10,
    "rl.steps": 6,
    "rl.tasks_per_step": 4,
    "rl.group_size": 4,
    "rl.minibatch": 8,
    "sandbox.max_boxes": 32,
    "sandbox.warm": 4,
}


def train_argv(out: Path, **overrides: Any) -> list[str]:
    settings = {**SHORT, **overrides}
    flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
    return [*TRIALYARD, "train", "configs/quickstart.toml", "--out", str(out), "--json", *flags]


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    lines = (out / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["kind"] == kind]


def rows(out: Path) -> list[Any]:
    from trialyard.storage.ledger import SqlLedger

    with SqlLedger(out / "ledger.sqlite", read_only=True) as ledger:
        return ledger.trajectories()


def wait_for_step(out: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (out / "events.jsonl").exists() and any(e["step"] >= step for e in events(out, "step")):
            return
        time.sleep(0.05)
    pytest.fail(f"step {step} was not reached")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "short"
    done = subprocess.run(train_argv(out), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return out


def test_a_run_leaves_everything_it_was_and_did(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert set(summary["held_out"]) == {"before_sft", "after_sft", "after_rl"}
    for rates in summary["held_out"].values():
        assert rates["n"] == 12
        low, high = rates["greedy_interval"]
        assert 0 <= low <= rates["greedy"] <= high <= 1
    assert summary["steps"] == 6
    assert summary["rollouts"] == 6 * 4 * 4
    assert sum(summary["staleness"].values()) == summary["rollouts"] - summary["ungraded"]
    assert set(summary["idle"]) == {"sampler", "learner", "sandboxes"}
    for name in ("report.html", "config.resolved.toml", "events.jsonl", "model/config.json"):
        assert (finished / name).stat().st_size > 0


def test_staleness_never_exceeds_its_bound(finished: Path) -> None:
    assert all(step["staleness_max"] <= 2 for step in events(finished, "step"))


def test_each_trajectory_is_consumed_once(finished: Path) -> None:
    trained = [row for row in rows(finished) if row.group.startswith("train/")]
    consumed = [row for row in trained if row.state == "consumed"]
    assert len(consumed) == 6 * 4 * 4
    per_step: dict[int, int] = {}
    for row in consumed:
        per_step[row.consumed_step] = per_step.get(row.consumed_step, 0) + 1
    assert per_step == dict.fromkeys(range(1, 7), 16)


def test_training_a_finished_run_again_is_refused(finished: Path) -> None:
    done = subprocess.run(train_argv(finished), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "trialyard resume" in done.stderr


def test_kill_9_in_the_middle_then_resume_loses_and_repeats_nothing(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = subprocess.Popen(
        train_argv(out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        wait_for_step(out, 2)
    finally:
        process.kill()
        process.communicate()
    before = {row.id: row for row in rows(out)}
    done = subprocess.run(
        [*TRIALYARD, "resume", str(out), "--json"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    after = {row.id: row for row in rows(out)}
    assert before.keys() <= after.keys(), "an acknowledged trajectory was lost"
    for id, row in before.items():
        if row.state == "consumed":
            assert after[id].consumed_step == row.consumed_step
    consumed = [row for row in after.values() if row.state == "consumed"]
    assert len(consumed) == 6 * 4 * 4
    assert json.loads((out / "summary.json").read_text())["steps"] == 6


def test_an_interrupt_stops_cleanly_and_resume_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    process = subprocess.Popen(train_argv(out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_for_step(out, 1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130
    assert b"trialyard resume" in error
    assert b"Traceback" not in error
    done = subprocess.run([*TRIALYARD, "resume", str(out)], capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (out / "report.html").exists()
