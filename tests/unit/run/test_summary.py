"""The summary comes from events alone, and a step redone after a crash counts once."""

from typing import Any

from trialyard.run.config import RunConfig
from trialyard.run.summary import phase_seconds, summarise


def step(number: int, time_s: float, **fields: Any) -> dict[str, Any]:
    values = {
        "staleness": {"0": 2},
        "num_trajectories": 2,
        "num_tokens": 5,
        "dropped_groups": 0,
        "num_ungraded": 0,
        "sampler_idle": 0.5,
        "learner_idle": 0.5,
        "sandbox_idle": 0.0,
    }
    return {"kind": "step", "step": number, "time_s": time_s, **values, **fields}


def test_a_step_counts_once_even_if_it_was_done_twice() -> None:
    events = [step(1, 1.0), step(2, 2.0), step(2, 9.0, staleness={"1": 2}), step(3, 10.0)]
    summary = summarise(RunConfig(), events)
    assert summary["steps"] == 3
    assert summary["rollouts"] == 6
    assert summary["staleness"] == {"0": 4, "1": 2}


def test_phases_are_timed_also_when_interrupted() -> None:
    def phase(name: str, state: str, time_s: float) -> dict[str, Any]:
        return {"kind": "phase", "name": name, "state": state, "time_s": time_s}

    events = [
        phase("sft", "start", 0.0),
        phase("sft", "end", 4.0),
        phase("rl", "start", 5.0),
        step(1, 8.0),
        phase("rl", "start", 100.0),
        phase("rl", "end", 102.0),
    ]
    assert phase_seconds(events) == {"sft": 4.0, "rl": 5.0}
