"""The imperfect demonstrator of the list-function tasks: episodes for supervised learning.

It writes well-formed code in the right places but holds misconceptions, slips and mistakes
constants; after a failed try it redraws some slots, and only sometimes follows what the
example shows. So imitation teaches form, and meaning is left to trial and error.
"""

import random

from trialyard.core.feedback import compact_feedback
from trialyard.core.ids import derive_random
from trialyard.core.outcome import CaseOutcome, CaseStatus
from trialyard.core.plain import same
from trialyard.core.record import Record
from trialyard.core.trajectory import Demonstration
from trialyard.tasks.generators.list_functions import (
    DEFAULT,
    Difficulty,
    Problem,
    function_of,
    problems,
)
from trialyard.tasks.generators.list_grammar import CHOICES, Part, Slot, body, instruction

MAX_TURNS = 3


class Sloppiness(Record):
    """How often the demonstrator errs; all are chances per slot."""

    misconception: float = 0.75
    slip: float = 0.1
    wrong_constant: float = 0.1
    redraw: float = 0.5
    follow_evidence: float = 0.6
    """After a failure: reads an open slot off the example rather than guessing again."""


SLOPPY = Sloppiness()


def demonstrations(
    seed: int, count: int, difficulty: Difficulty = DEFAULT, sloppiness: Sloppiness = SLOPPY
) -> list[Demonstration]:
    """Episodes on training material of their own stream, up to three turns each."""
    rng = derive_random(seed, "list-functions", "demonstrator")
    return [
        Demonstration(f"list-functions/demo-{index:06d}", _episode(problem, rng, sloppiness))
        for index, problem in enumerate(problems(seed, "demo", count, difficulty))
    ]


def _episode(
    problem: Problem, rng: random.Random, sloppiness: Sloppiness
) -> tuple[tuple[str, str], ...]:
    turns: list[tuple[str, str]] = []
    context = instruction(problem.program)
    guess = {slot: _read(slot, part, rng, sloppiness) for slot, part in problem.program.items()}
    for _ in range(MAX_TURNS):
        answer = body(guess)
        turns.append((context, answer))
        outcomes = run_cases(problem, answer)
        if all(outcome.status == "passed" for outcome in outcomes):
            break
        context = compact_feedback(outcomes)
        for slot, part in problem.program.items():
            if part.choice.is_open and rng.random() < sloppiness.follow_evidence:
                guess[slot] = part
            elif rng.random() < sloppiness.redraw:
                guess[slot] = _read(slot, part, rng, sloppiness)
    return tuple(turns)


def _read(slot: Slot, part: Part, rng: random.Random, sloppiness: Sloppiness) -> Part:
    """What the demonstrator takes a slot for, before it has seen any example."""
    choice, k = part.choice, part.k
    if choice.constants and (choice.is_open or rng.random() < sloppiness.wrong_constant):
        k = rng.choice(choice.constants)
    if choice.mistake:
        wrong = rng.random() < sloppiness.misconception
        return Part(choice, choice.mistake if wrong else part.code, k)
    if choice.is_open or choice.is_ambiguous:
        return Part(choice, rng.choice(choice.readings), k)
    if rng.random() < sloppiness.slip:
        rivals = [c for c in CHOICES[slot] if not c.is_open and bool(c.constants) == bool(k)]
        return Part(choice, rng.choice(rivals).readings[0], k) if rivals else part
    return Part(choice, part.code, k)


def run_cases(problem: Problem, answer: str) -> list[CaseOutcome]:
    """Outcomes of a body of this grammar on the visible inputs."""
    right, wrong = function_of(body(problem.program)), function_of(answer)
    outcomes = []
    for case, values in enumerate(problem.visible):
        expected, got = right(list(values)), wrong(list(values))
        status: CaseStatus = "passed" if same(got, expected) else "failed"
        outcomes.append(CaseOutcome(case, status, (list(values),), expected, got))
    return outcomes
