"""Feedback: what a policy is told after a failed try.

Pure text from outcomes, bounded in length whatever the candidate returned: how many
cases passed, and failing ones with what came out and what was wanted.
"""

import re
from collections.abc import Sequence

from trialyard.core.outcome import CaseOutcome

MAX_VALUE_CHARS = 80
MAX_FULL_CASES = 5
_WORD = re.compile(r"[A-Za-z_]\w{0,39}")


def compact_feedback(outcomes: Sequence[CaseOutcome]) -> str:
    """One line such as ``passed 1 of 4; f([3, -1]) got 2 want 3``."""
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    head = f"passed {passed} of {len(outcomes)}"
    failing = next((outcome for outcome in outcomes if outcome.status != "passed"), None)
    if failing is None:
        return head
    return f"{head}; {_call(failing)} {_finding(failing)} want {_bounded(failing.expected)}"


def full_feedback(outcomes: Sequence[CaseOutcome]) -> str:
    """Several failing cases, one a line, with the message of those that raised."""
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    failing = [outcome for outcome in outcomes if outcome.status != "passed"]
    lines = [f"{passed} of {len(outcomes)} visible cases passed."]
    for outcome in failing[:MAX_FULL_CASES]:
        message = f" ({_cut(outcome.message)})" if outcome.message else ""
        wanted = _bounded(outcome.expected)
        lines.append(f"{_call(outcome)}: {_finding(outcome)}{message}, want {wanted}")
    if len(failing) > MAX_FULL_CASES:
        lines.append(f"... and {len(failing) - MAX_FULL_CASES} more")
    return "\n".join(lines)


def _call(outcome: CaseOutcome) -> str:
    arguments = ", ".join(_bounded(argument) for argument in outcome.args)
    return f"f({_cut(arguments)})"


def _finding(outcome: CaseOutcome) -> str:
    """What happened, led by a word that names the kind of failure."""
    if outcome.status == "failed":
        return f"got {_bounded(outcome.got)}"
    if outcome.status == "error":
        word = _WORD.match(outcome.message)
        return f"error {word.group() if word else 'Error'}"
    return outcome.status


def _bounded(value: object) -> str:
    try:
        return _cut(repr(value))
    except (ValueError, RecursionError):  # an integer past Python's limit on digits
        return "badvalue"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "..."
