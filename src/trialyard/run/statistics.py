"""Small statistics of a run: intervals, means, histograms."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

Z_95 = 1.959964


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927).

    ((p + z²/2n) ± z·sqrt(pq/n + z²/4n²)) / (1 + z²/n)
    """
    if n == 0:
        return (0.0, 1.0)
    p, z2 = successes / n, Z_95**2
    centre = p + z2 / (2 * n)
    half = Z_95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return (max(0.0, (centre - half) / (1 + z2 / n)), min(1.0, (centre + half) / (1 + z2 / n)))


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 for nothing."""
    return sum(values) / len(values) if values else 0.0


def histogram(values: Iterable[int]) -> dict[str, int]:
    """Counts by value, in order, with text keys (for JSON)."""
    return {str(value): count for value, count in sorted(Counter(values).items())}
