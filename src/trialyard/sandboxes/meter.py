"""What one command used of its box, and the result that says so."""

from dataclasses import dataclass

from trialyard.core.sandbox import ExecResult, ExecStatus, ExecUsage
from trialyard.sandboxes.box_view import BoxView, Counters


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended, as the supervisor saw it."""

    status: ExecStatus
    exit_code: int | None = None
    signal: int | None = None
    limits_hit: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Output:
    """What one stream gave: the bytes kept, and how many there were."""

    kept: bytes = b""
    total_bytes: int = 0


class Meter:
    """Counts from its making on. Counts are per box where the kernel keeps them per box."""

    def __init__(self, box: BoxView) -> None:
        self._box = box
        self._started_s = box.loop.time()
        self._before = box.counters()
        box.cpu_used_s(self._before)

    def result(self, ending: Ending, stdout: Output, stderr: Output, after: Counters) -> ExecResult:
        """The result of a command that ended in a moment when the counters were `after`."""
        limits = self._box.limits
        hit = set(ending.limits_hit) | self._box.full()
        status, exit_code, signal = ending.status, ending.exit_code, ending.signal
        if max(stdout.total_bytes, stderr.total_bytes) > limits.output_bytes:
            hit.add("output")
        if after.pids_refused > self._before.pids_refused:
            hit.add("pids")
        if after.throttled > self._before.throttled:
            hit.add("network")
        ended_itself = status in (ExecStatus.EXITED, ExecStatus.SIGNALED)
        if ended_itself and limits.cpu_s and self._box.cpu_used_s(after) >= limits.cpu_s:
            # It ended between two looks at the clock.
            status, exit_code, signal = ExecStatus.TIMEOUT, None, None
            hit.add("cpu")
        if status is ExecStatus.OOM:
            hit.add("memory")
        memory_peak_bytes, pids_peak = self._box.peaks()
        return ExecResult(
            status=status,
            exit_code=exit_code,
            signal=signal,
            stdout=stdout.kept,
            stderr=stderr.kept,
            stdout_bytes=stdout.total_bytes,
            stderr_bytes=stderr.total_bytes,
            limits_hit=frozenset(hit),
            usage=ExecUsage(
                wall_s=self._box.loop.time() - self._started_s,
                cpu_s=max(0, after.cpu_us - self._before.cpu_us) / 1e6,
                memory_peak_bytes=memory_peak_bytes,
                pids_peak=pids_peak,
            ),
            not_enforced=self._box.not_enforced,
        )
