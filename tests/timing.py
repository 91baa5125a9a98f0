"""How long things may take. An emulated machine is slower: TRIALYARD_TIME_SCALE says how much.

Only patience is scaled, in real seconds: a bound on how long something takes, or the time-out of
a program that must get something done first. What is checked stays the same.
"""

import os

TIME_SCALE = float(os.environ.get("TRIALYARD_TIME_SCALE", "1"))


def scaled(time_s: float, *, at_most_s: float = float("inf")) -> float:
    """`time_s` on an ordinary machine; `at_most_s` where the program itself goes on by clock."""
    return max(time_s, min(time_s * TIME_SCALE, at_most_s))
