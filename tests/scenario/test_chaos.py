"""A supervisor killed at any moment leaves nothing: a few here, 200 by `make chaos`."""

import os
import random

from benchmarks._killed_owners import kill_owners

KILLS = int(os.environ.get("TRIALYARD_CHAOS_KILLS", "12"))


def test_a_supervisor_killed_at_any_moment_leaves_nothing() -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    kills = kill_owners(KILLS, random.Random(seed))
    assert kills.left == [], seed
    assert kills.boxes > 0
