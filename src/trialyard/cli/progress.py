"""What a person sees while a run goes on: bars on a terminal, lines elsewhere, or JSON."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from trialyard.cli.command import print_json
from trialyard.core.events import EventSink

LINE_EVERY_S = 5.0
WINDOW = 10


@contextmanager
def progress(as_json: bool) -> Iterator[EventSink]:
    """The sink for this terminal."""
    if as_json:
        yield JsonEvents()
    elif sys.stdout.isatty():
        bars = Bars(no_color="NO_COLOR" in os.environ)
        with bars.progress:
            yield bars
    else:
        yield Lines()


class JsonEvents:
    """One JSON object a line on stdout."""

    def emit(self, kind: str, **fields: Any) -> None:
        print_json({"kind": kind, **fields})


def describe_step(event: dict[str, Any], recent: deque[dict[str, Any]]) -> str:
    """Rates averaged over the last steps, and what waits for what."""
    recent.append(event)

    def average(key: str) -> float:
        return float(sum(e[key] for e in recent) / len(recent))

    return (
        f"solved {average('solve_rate'):.0%} reward {average('reward_mean'):.2f} "
        f"staleness {average('staleness_mean'):.1f} (max {event['staleness_max']}) "
        f"{average('rollouts_per_s'):.0f} rollouts/s idle: sampler {average('sampler_idle'):.0%} "
        f"learner {average('learner_idle'):.0%} boxes {average('sandbox_idle'):.0%}"
    )


def describe_evaluation(event: dict[str, Any]) -> str:
    low, high = event["sampled_interval"]
    return (
        f"held-out {event['label']}: greedy {event['greedy']:.1%}, sampled {event['sampled']:.1%} "
        f"({low:.0%}-{high:.0%}), {event['n']} tasks"
    )


class Lines:
    """Plain lines, at most one every few seconds within a phase."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self._steps = 0
        self._started_s = time.monotonic()
        self._done_before = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=WINDOW)

    def emit(self, kind: str, **fields: Any) -> None:
        if kind == "phase" and fields["state"] == "start":
            self._steps, self._done_before = fields.get("steps", 0), fields.get("done", 0)
            self._started_s = time.monotonic()
            self._print(f"{fields['name']} ...")
        elif kind == "evaluation":
            self._print(describe_evaluation(fields))
        elif kind in ("step", "sft_step"):
            text = describe_step(fields, self._recent) if kind == "step" else _loss(fields)
            if time.monotonic() - self._last_s > LINE_EVERY_S or fields["step"] == self._steps:
                self._print(f"{kind} {fields['step']}/{self._steps} {text}{self._eta(fields)}")

    def _eta(self, fields: dict[str, Any]) -> str:
        done = fields["step"] - self._done_before
        left = self._steps - fields["step"]
        return f" ETA {(time.monotonic() - self._started_s) / max(1, done) * left:.0f} s"

    def _print(self, text: str) -> None:
        self._last_s = time.monotonic()
        print(text, flush=True)


class Bars:
    """A bar for each phase, with rates beside it."""

    def __init__(self, *, no_color: bool) -> None:
        self.progress = Progress(
            TextColumn("{task.description:22}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}"),
            console=Console(no_color=no_color),
        )
        self._task: TaskID | None = None
        self._recent: deque[dict[str, Any]] = deque(maxlen=WINDOW)

    def emit(self, kind: str, **fields: Any) -> None:
        if kind == "phase" and fields["state"] == "start":
            steps = fields.get("steps") or None
            self._task = self.progress.add_task(
                fields["name"], total=steps, completed=fields.get("done", 0), detail=""
            )
        elif kind == "phase" and self._task is not None:
            total = self.progress.tasks[self._task].total or 1
            self.progress.update(self._task, total=total, completed=total)
        elif kind == "evaluation":
            self.progress.console.print(describe_evaluation(fields))
        elif kind in ("step", "sft_step") and self._task is not None:
            text = describe_step(fields, self._recent) if kind == "step" else _loss(fields)
            self.progress.update(self._task, completed=fields["step"], detail=text)


def _loss(fields: dict[str, Any]) -> str:
    return f"loss {fields['loss']:.3f}"
