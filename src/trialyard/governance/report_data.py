"""What a report knows about a run: its files read once, tolerant of missing and torn parts.

Times are *active* seconds since the first event: a pause between a crash and the resume
counts at most `MAX_GAP_S`, and a clock that steps back counts as no time. A step that
was redone after a crash counts once, the last time.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_GAP_S = 600.0
PHASES = {"sft": "SFT", "rl": "RL"}
LABELS = {"before_sft": "Before training", "after_sft": "After SFT", "after_rl": "After RL"}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rates:
    """One held-out evaluation: solve rates with 95 % intervals."""

    label: str
    at_s: float | None
    step: int | None
    greedy: float | None
    sampled: float | None
    greedy_interval: tuple[float, float] | None
    sampled_interval: tuple[float, float] | None
    n: int | None

    @property
    def title(self) -> str:
        """The label for people."""
        return LABELS.get(self.label, self.label.replace("_", " ").capitalize())


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the run; `end_s` is the last event of one that never ended."""

    name: str
    start_s: float
    end_s: float


@dataclass
class RunData:
    """Everything but the trajectories. `missing` says what could not be found, and why."""

    name: str
    started_s: float | None = None
    duration_s: float = 0.0
    finished: bool = False
    config: str = ""
    summary: Json = field(default_factory=dict)
    steps: list[Json] = field(default_factory=list)
    """``step`` events in order of their number, each with ``at_s``."""
    sft_steps: list[Json] = field(default_factory=list)
    rates: list[Rates] = field(default_factory=list)
    """Evaluations in order of time."""
    phases: list[Phase] = field(default_factory=list)
    faults: list[Json] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def held_out(self) -> list[Rates]:
        """The named evaluations in the order of training."""
        by_label = {rates.label: rates for rates in self.rates}
        return [by_label[label] for label in LABELS if label in by_label]

    def series(self, key: str) -> list[tuple[float, float]]:
        """(step, value) of one field of the step events, where it is a number."""
        pairs = [(number(step["step"]), number(step.get(key))) for step in self.steps]
        return [(x, y) for x, y in pairs if x is not None and y is not None]


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def read_run(directory: Path) -> RunData:
    """Read the files of a run directory; whatever is missing or broken is noted."""
    run = RunData(name=directory.resolve().name)
    _read_config(directory / "config.resolved.toml", run)
    _read_events(directory / "events.jsonl", run)
    _read_summary(directory / "summary.json", run)
    _note_gaps(run)
    return run


def _read_config(path: Path, run: RunData) -> None:
    try:
        run.config = path.read_text("utf-8", "replace")
    except OSError:
        run.missing.append(f"{path.name} is missing: the settings of this run are not known.")


def _read_events(path: Path, run: RunData) -> None:
    if not path.exists():
        run.missing.append(f"{path.name} is missing: no curves can be drawn.")
        return
    steps: dict[float, Json] = {}
    sft: dict[float, Json] = {}
    phases: list[Json] = []
    for event in _timed(_lines(path, run), run):
        kind, step = event["kind"], number(event.get("step"))
        if kind == "step" and step is not None:
            steps[step] = event
        elif kind == "sft_step" and step is not None:
            sft[step] = event
        elif kind == "evaluation":
            run.rates = [r for r in run.rates if r.label != str(event.get("label"))]
            run.rates.append(_rates(str(event.get("label")), event, event["at_s"]))
        elif kind == "phase":
            phases.append(event)
        elif kind == "fault":
            run.faults.append(event)
    run.steps = [steps[step] for step in sorted(steps)]
    run.sft_steps = [sft[step] for step in sorted(sft)]
    run.phases = list(_phases(phases, run.duration_s))


def _lines(path: Path, run: RunData) -> Iterator[Json]:
    torn = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line)
                readable = isinstance(event["kind"], str)
            except (ValueError, TypeError, KeyError, RecursionError):
                readable = False
            if readable:
                yield event
            else:
                torn += bool(line.strip())
    if torn:
        run.missing.append(f"{torn} unreadable line(s) of {path.name} (torn by a crash) left out.")


def _timed(events: Iterator[Json], run: RunData) -> Iterator[Json]:
    """Events with ``at_s``; sets start and duration of the run on the way."""
    last_s: float | None = None
    for event in events:
        wall_s = number(event.get("time_s"))
        if wall_s is not None:
            if last_s is None:
                run.started_s = wall_s
            else:
                run.duration_s += min(MAX_GAP_S, max(0.0, wall_s - last_s))
            last_s = wall_s
        yield {**event, "at_s": run.duration_s}


def _phases(events: list[Json], end_s: float) -> Iterator[Phase]:
    current: Json | None = None
    for event in events:
        if current is not None:
            yield Phase(str(current.get("name")), current["at_s"], event["at_s"])
        current = event if event.get("state") == "start" else None
    if current is not None:
        yield Phase(str(current.get("name")), current["at_s"], end_s)


def _read_summary(path: Path, run: RunData) -> None:
    try:
        summary = json.loads(path.read_text("utf-8"))
        if not isinstance(summary, dict):
            raise ValueError("not an object")
    except FileNotFoundError:
        run.missing.append(
            "summary.json is missing: the run has not finished. The figures here are counted from "
            "its events so far."
        )
        return
    except (OSError, ValueError, RecursionError) as error:
        run.missing.append(f"summary.json cannot be read ({error}); figures come from the events.")
        return
    run.summary, run.finished = summary, True
    run.name = str(summary.get("name") or run.name)
    known = {rates.label for rates in run.rates}
    held_out = summary.get("held_out")
    for label, values in (held_out if isinstance(held_out, dict) else {}).items():
        if label not in known and isinstance(values, dict):
            run.rates.append(_rates(label, values, None))


def _rates(label: str, values: Mapping[str, Any], at_s: float | None) -> Rates:
    step, n = number(values.get("step")), number(values.get("n"))
    return Rates(
        label=label,
        at_s=at_s,
        step=None if step is None else int(step),
        greedy=number(values.get("greedy")),
        sampled=number(values.get("sampled")),
        greedy_interval=_interval(values.get("greedy_interval")),
        sampled_interval=_interval(values.get("sampled_interval")),
        n=None if n is None else int(n),
    )


def _interval(value: Any) -> tuple[float, float] | None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    return None if low is None or high is None else (low, high)


def _note_gaps(run: RunData) -> None:
    found = {rates.label for rates in run.rates}
    for label, title in LABELS.items():
        if label not in found:
            run.missing.append(f"The held-out evaluation {title!r} has not been made.")
    if not run.steps:
        run.missing.append("There is no reinforcement-learning step yet.")


def staleness(run: RunData) -> dict[str, int]:
    """Trajectories consumed by staleness, from the summary or else the step events."""
    counted: Counter[str] = Counter()
    for source in [run.summary] if "staleness" in run.summary else run.steps:
        found = source.get("staleness")
        for key, count in (found if isinstance(found, dict) else {}).items():
            counted[str(key)] += int(number(count) or 0)
    return dict(sorted(counted.items(), key=lambda item: (number_or_inf(item[0]), item[0])))


def number_or_inf(text: str) -> float:
    """Sort key: whole numbers in order, anything else last."""
    return float(text) if text.lstrip("-").isdigit() else math.inf


def phase_seconds(run: RunData) -> dict[str, float]:
    """Wall time by phase, from the summary or else the phase events."""
    found = run.summary.get("wall_s")
    if isinstance(found, dict):
        pairs = [(str(name), number(seconds)) for name, seconds in found.items()]
        return {name: seconds for name, seconds in pairs if seconds is not None}
    seconds: Counter[str] = Counter()
    for phase in run.phases:
        seconds[phase.name] += phase.end_s - phase.start_s  # type: ignore[assignment]
    return dict(seconds)
