"""The summary of a run, from its events alone."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from trialyard.run.config import RunConfig
from trialyard.run.statistics import mean

RATES = ("greedy", "sampled", "greedy_interval", "sampled_interval", "n")
IDLE = {"sampler": "sampler_idle", "learner": "learner_idle", "sandboxes": "sandbox_idle"}


def summarise(config: RunConfig, events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ``summary.json`` holds. A step redone after a crash counts once, the last time."""
    steps = {e["step"]: e for e in events if e["kind"] == "step"}
    evaluations = {e["label"]: e for e in events if e["kind"] == "evaluation"}
    staleness: Counter[str] = Counter()
    for step in steps.values():
        staleness.update(step["staleness"])
    faults = Counter(e["fault"] for e in events if e["kind"] == "fault")
    return {
        "name": config.name,
        "seed": config.seed,
        "held_out": {
            label: {key: evaluation[key] for key in RATES}
            for label, evaluation in evaluations.items()
        },
        "wall_s": phase_seconds(events),
        "rollouts": sum(step["num_trajectories"] for step in steps.values()),
        "steps": len(steps),
        "tokens": sum(step["num_tokens"] for step in steps.values()),
        "staleness": dict(sorted(staleness.items())),
        "dropped_groups": sum(step["dropped_groups"] for step in steps.values()),
        "ungraded": sum(step["num_ungraded"] for step in steps.values()),
        "faults": dict(faults),
        "idle": {
            name: round(mean([step[key] for step in steps.values()]), 4)
            for name, key in IDLE.items()
        },
    }


def phase_seconds(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds per phase; an interrupted phase counts until its last event."""
    seconds: dict[str, float] = defaultdict(float)
    current, started_s, last_s = "", 0.0, 0.0
    for event in events:
        if event["kind"] == "phase" and event["state"] == "start":
            if current:
                seconds[current] += last_s - started_s
            current, started_s = event["name"], event["time_s"]
        elif event["kind"] == "phase" and current:
            seconds[current] += event["time_s"] - started_s
            current = ""
        last_s = event["time_s"]
    if current:
        seconds[current] += last_s - started_s
    return {name: round(value, 3) for name, value in seconds.items()}
