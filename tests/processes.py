"""Whether processes live, for tests of children that must die."""

import time
from pathlib import Path


def is_gone(process: int, *, within_s: float) -> bool:
    """Whether a process ended (or is a zombie that nobody has waited for yet)."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state in "ZX":
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
