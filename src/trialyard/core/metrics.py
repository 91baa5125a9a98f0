"""Counters, gauges and histograms of one part of the system, as text that Prometheus reads.

A `Metrics` object is made by whoever wants to look and is passed in: there is no global
registry. Used from one thread.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

Labels = Mapping[str, str]
_Key = tuple[tuple[str, str], ...]
LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


def _key(labels: Labels) -> _Key:
    return tuple(sorted(labels.items()))


def _series(name: str, key: _Key, value: float) -> str:
    labels = ",".join(f'{label}="{_escape(text)}"' for label, text in key)
    return f"{name}{{{labels}}} {value:.10g}" if labels else f"{name} {value:.10g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Counter:
    """Only ever grows."""

    kind = "counter"

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: dict[_Key, float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        key = _key(labels)
        self._values[key] = self._values.get(key, 0) + amount

    def value(self, **labels: str) -> float:
        return self._values.get(_key(labels), 0)

    def lines(self) -> list[str]:
        values = self._values or {(): 0.0}
        return [_series(self._name, key, value) for key, value in sorted(values.items())]


class Reading:
    """A number that somebody else keeps, asked for when somebody looks."""

    def __init__(self, name: str, read: Callable[[], float], kind: str) -> None:
        self._name = name
        self._read = read
        self.kind = kind

    def lines(self) -> list[str]:
        return [_series(self._name, (), self._read())]


class Histogram:
    """How often a value was at most each of some bounds."""

    kind = "histogram"

    def __init__(self, name: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._bounds = sorted(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def lines(self) -> list[str]:
        out, below = [], 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            below += count
            edge = "+Inf" if bound == float("inf") else f"{bound:.10g}"
            out.append(_series(f"{self._name}_bucket", (("le", edge),), below))
        out.append(_series(f"{self._name}_sum", (), self._sum))
        return [*out, _series(f"{self._name}_count", (), below)]


class _Metric(Protocol):
    kind: str

    def lines(self) -> list[str]: ...


_Some = TypeVar("_Some", bound=_Metric)


class Metrics:
    """The metrics of one part, each with a name and a sentence of help."""

    def __init__(self) -> None:
        self._metrics: dict[str, tuple[str, _Metric]] = {}

    def counter(self, name: str, help: str) -> Counter:
        return self._add(name, help, Counter(name))

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> Reading:
        return self._add(name, help, Reading(name, read, "gauge"))

    def total(self, name: str, help: str, read: Callable[[], float]) -> Reading:
        """A counter that somebody else keeps."""
        return self._add(name, help, Reading(name, read, "counter"))

    def histogram(
        self, name: str, help: str, bounds: Sequence[float] = LATENCY_BUCKETS_S
    ) -> Histogram:
        return self._add(name, help, Histogram(name, bounds))

    def _add(self, name: str, help: str, metric: _Some) -> _Some:
        if name in self._metrics:
            raise ValueError(f"metric {name!r} exists already")
        self._metrics[name] = (help, metric)
        return metric

    def text(self) -> str:
        """All of it in Prometheus's text format."""
        out = []
        for name, (help, metric) in self._metrics.items():
            out += [f"# HELP {name} {help}", f"# TYPE {name} {metric.kind}", *metric.lines()]
        return "\n".join(out) + "\n"
