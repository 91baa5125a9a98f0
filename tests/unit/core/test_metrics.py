"""Metrics in Prometheus's text format."""

import pytest

from trialyard.core.metrics import Metrics


def test_every_kind_in_the_text() -> None:
    metrics = Metrics()
    ended = metrics.counter("ended_total", "How commands ended.")
    ended.add(status="exited")
    ended.add(2, status='a "quoted"\nword\\')
    wait = metrics.histogram("wait_seconds", "Waiting.", bounds=(0.1, 1))
    for value in (0.05, 0.1, 0.5, 7):
        wait.observe(value)
    metrics.gauge("live", "Now.", lambda: 3)
    metrics.total("made_total", "Made.", lambda: 12345678)
    metrics.counter("never_total", "Nothing yet.")
    assert metrics.text().splitlines() == [
        "# HELP ended_total How commands ended.",
        "# TYPE ended_total counter",
        'ended_total{status="a \\"quoted\\"\\nword\\\\"} 2',
        'ended_total{status="exited"} 1',
        "# HELP wait_seconds Waiting.",
        "# TYPE wait_seconds histogram",
        'wait_seconds_bucket{le="0.1"} 2',
        'wait_seconds_bucket{le="1"} 3',
        'wait_seconds_bucket{le="+Inf"} 4',
        "wait_seconds_sum 7.65",
        "wait_seconds_count 4",
        "# HELP live Now.",
        "# TYPE live gauge",
        "live 3",
        "# HELP made_total Made.",
        "# TYPE made_total counter",
        "made_total 12345678",
        "# HELP never_total Nothing yet.",
        "# TYPE never_total counter",
        "never_total 0",
    ]
    assert (ended.value(status="exited"), wait.count) == (1, 4)


def test_a_name_is_used_once() -> None:
    metrics = Metrics()
    metrics.counter("a", "A.")
    with pytest.raises(ValueError, match="'a' exists"):
        metrics.gauge("a", "A.", lambda: 0)
