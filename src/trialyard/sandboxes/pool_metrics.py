"""The metrics of one pool; `text` is what a served endpoint would return."""

from collections.abc import Callable

from trialyard.core.metrics import Metrics
from trialyard.sandboxes.box_events import (
    BoxEnded,
    BoxEvent,
    BoxLeased,
    BoxStarted,
    CommandEnded,
    FileOperation,
    NetworkTried,
    Refused,
)
from trialyard.sandboxes.box_pool import BoxPool


class PoolMetrics:
    """Observes a pool from now on: counters by events, gauges by looking."""

    def __init__(self, pool: BoxPool) -> None:
        self.metrics = metrics = Metrics()
        for name, help in {
            "created": "Boxes that were started.",
            "destroyed": "Boxes that were destroyed and are gone.",
            "lost": "Boxes that vanished by themselves or by somebody else's hand.",
            "leaked": "Boxes of which something would not go.",
        }.items():
            metrics.total(f"trialyard_boxes_{name}_total", help, _reader(pool, name))
        metrics.gauge("trialyard_boxes_live", "Boxes in use.", _reader(pool, "live"))
        metrics.gauge("trialyard_boxes_warm", "Unused boxes.", _reader(pool, "warm"))
        metrics.gauge(
            "trialyard_box_queue_length", "Claims that wait for room.", lambda: pool.num_waiting
        )
        metrics.gauge(
            "trialyard_boxes_memory_bytes",
            "What the boxes in use may use together.",
            lambda: pool.promised_bytes,
        )
        self._wait = metrics.histogram(
            "trialyard_box_acquire_seconds", "From the call of acquire until the box was there."
        )
        self._start = metrics.histogram(
            "trialyard_box_start_seconds", "From nothing to a box that takes commands."
        )
        self._refused = metrics.counter(
            "trialyard_box_claims_refused_total", "Claims that got no boxes in time."
        )
        self._commands = metrics.counter(
            "trialyard_box_commands_total", "Commands by how they ended."
        )
        self._command = metrics.histogram("trialyard_box_command_seconds", "Wall time of commands.")
        self._limits = metrics.counter(
            "trialyard_box_limits_hit_total", "Commands that hit a limit, by limit."
        )
        self._files = metrics.counter(
            "trialyard_box_file_operations_total", "File operations by name."
        )
        self._network = metrics.counter(
            "trialyard_box_network_attempts_total", "Attempts of boxes to reach hosts, by verdict."
        )
        pool.observe(self.on_event)

    def on_event(self, event: BoxEvent) -> None:
        match event:
            case BoxStarted():
                self._start.observe(event.start_s)
            case BoxLeased():
                self._wait.observe(event.waited_s)
            case Refused():
                self._refused.add()
            case CommandEnded():
                status = event.result.status.value if event.result else "error"
                self._commands.add(status="cancelled" if event.error == "cancelled" else status)
                self._command.observe(event.duration_s)
                for limit in event.result.limits_hit if event.result else ():
                    self._limits.add(limit=limit)
            case FileOperation():
                self._files.add(operation=event.operation)
            case NetworkTried():
                self._network.add(verdict=event.attempt.verdict)
            case BoxEnded():
                pass

    def text(self) -> str:
        """All of it in Prometheus's text format."""
        return self.metrics.text()


def _reader(pool: BoxPool, name: str) -> Callable[[], float]:
    return lambda: pool.counters()[name]
