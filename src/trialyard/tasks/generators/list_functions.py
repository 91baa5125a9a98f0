"""List functions: an English specification to a one-line Python function, seeded.

Held-out tasks (`test`, `valid`) differ from training tasks in the combination of families
and hold at least one (family, constant) pair that training never shows, so no body and no
specification is shared, whatever the seeds. A task is kept only where leaving out any slot
and reading any slot wrongly changes the visible and the hidden results alike.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trialyard.core.cases import Case, dump_cases
from trialyard.core.ids import derive_random, derive_seed
from trialyard.core.record import Record
from trialyard.core.task import AgentSpec, Rubric, Split, Task, TaskSpec, ValuesCheck
from trialyard.tasks.generators.list_grammar import (
    CHOICES,
    SLOTS,
    Choice,
    Part,
    Program,
    Slot,
    body,
    instruction,
)

ANSWER_PREFIX = "def f(v):\n    return "
NUM_VISIBLE = 4
NUM_HIDDEN = 8
_HELD_OUT_SHARE = 4
_SAFE_BUILTINS = {
    function.__name__: function
    for function in (abs, len, list, max, min, set, sorted, str, sum, tuple)
}

Inputs = tuple[tuple[int, ...], ...]


class Difficulty(Record):
    """Knobs: how many slots besides the end, and how often something is left unsaid."""

    min_slots: int = 1
    max_slots: int = 3
    open_share: float = 0.5
    """Tasks in which only the examples tell the form or a constant."""
    ambiguous_share: float = 0.1
    """Chance of an ambiguous word in each slot that has one."""


DEFAULT = Difficulty()


@dataclass(frozen=True, slots=True)
class Problem:
    """A program with the inputs that tell it from its misreadings."""

    program: Program
    visible: Inputs
    hidden: Inputs


def generate(seed: int, split: Split, count: int, difficulty: Difficulty = DEFAULT) -> list[Task]:
    """The first `count` tasks of the stream named by `seed` and `split`."""
    return [
        _task(problem, f"{split}-{index:06d}", split, seed)
        for index, problem in enumerate(problems(seed, split, count, difficulty))
    ]


def problems(
    seed: int, stream: str, count: int, difficulty: Difficulty = DEFAULT
) -> Iterator[Problem]:
    """Distinct problems; streams other than ``valid`` and ``test`` are training material."""
    admits = is_held_out if stream in ("valid", "test") else is_training
    seen: set[str] = set()
    rng = derive_random(seed, "list-functions", stream)
    while len(seen) < count:
        program = _draw_program(rng, difficulty)
        key = f"{instruction(program)} {body(program)}"
        if key in seen or not admits(program):
            continue
        problem = _draw_problem(program, rng)
        if problem is not None:
            seen.add(key)
            yield problem


def is_held_out(program: Program) -> bool:
    """Whether the program is for evaluation: its combination and a constant are reserved."""
    return _has_reserved_combination(program) and _has_reserved_constant(program)


def is_training(program: Program) -> bool:
    """Whether the program may be trained on: nothing about it is reserved."""
    return not _has_reserved_combination(program) and not _has_reserved_constant(program)


def _has_reserved_combination(program: Program) -> bool:
    combination = [f"{slot}:{program[slot].choice.family}" for slot in SLOTS if slot in program]
    return derive_seed(0, "combination", *combination) % _HELD_OUT_SHARE == 0


def _has_reserved_constant(program: Program) -> bool:
    return any(part.pair in _held_pairs() for part in program.values())


@lru_cache(maxsize=1)
def _held_pairs() -> frozenset[tuple[str, int]]:
    """One in four constants of every primitive that names one, the same for all seeds."""
    held: set[tuple[str, int]] = set()
    for choice in itertools.chain(*CHOICES.values()):
        if choice.constants and not choice.is_open:
            rng = derive_random(0, "constants", choice.english)
            size = max(1, len(choice.constants) // 4)
            held.update((choice.english, k) for k in rng.sample(choice.constants, size))
    return frozenset(held)


def _draw_program(rng: random.Random, difficulty: Difficulty) -> dict[Slot, Part]:
    inner: list[Slot] = ["filter", "map", "order"]
    size = rng.randint(difficulty.min_slots, difficulty.max_slots)
    chosen: set[Slot] = {*rng.sample(inner, size), "end"}
    wants_open = rng.random() < difficulty.open_share
    program: dict[Slot, Part] = {}
    for slot in SLOTS:
        if slot in chosen:
            is_open = slot == "end" and wants_open
            is_ambiguous = rng.random() < difficulty.ambiguous_share
            pool = [c for c in CHOICES[slot] if c.is_open == is_open]
            preferred = [c for c in pool if c.is_ambiguous == is_ambiguous]
            choice = rng.choice(preferred or pool)
            k = rng.choice(choice.constants) if choice.constants else 0
            program[slot] = Part(choice, rng.choice(choice.readings), k)
    return program


def _draw_problem(program: Program, rng: random.Random, tries: int = 4) -> Problem | None:
    """Inputs on which every misreading shows, both visibly and hidden; None if not found."""
    rivals = [function_of(wrong) for wrong in misreadings(program)]
    right = function_of(body(program))
    for _ in range(tries):
        visible = _draw_inputs(program, rng, NUM_VISIBLE)
        hidden = _draw_inputs(program, rng, NUM_HIDDEN)
        if set(visible) & set(hidden) or _is_dull(right, hidden):
            continue
        if all(_differs(right, rival, visible, hidden) for rival in rivals):
            return Problem(program, visible, hidden)
    return None


def _draw_inputs(program: Program, rng: random.Random, count: int) -> Inputs:
    """Short lists of small integers; constants of the program are strewn in."""
    constants = [part.k for part in program.values() if 0 < part.k < 10] or [0]
    inputs = []
    for _ in range(count):
        values = [rng.randint(-5, 9) for _ in range(rng.randint(5, 7))]
        values[rng.randrange(len(values))] = rng.choice(constants)
        inputs.append(tuple(values))
    return tuple(inputs)


def _is_dull(right: Callable[[list[int]], Any], hidden: Inputs) -> bool:
    results = [repr(right(list(values))) for values in hidden]
    return len(set(results)) < NUM_HIDDEN // 2


def _differs(
    right: Callable[[list[int]], Any], wrong: Callable[[list[int]], Any], *sets: Inputs
) -> bool:
    return all(
        any(repr(right(list(values))) != repr(wrong(list(values))) for values in inputs)
        for inputs in sets
    )


def misreadings(program: Program) -> list[str]:
    """Bodies with one slot left out or read wrongly."""
    bodies = []
    for slot, part in program.items():
        if slot != "end":
            bodies.append(body({other: p for other, p in program.items() if other != slot}))
        codes = {*part.choice.readings, part.choice.mistake} - {part.code, ""}
        for code in sorted(codes):
            bodies.append(body({**program, slot: Part(part.choice, code, part.k)}))
    return bodies


@lru_cache(maxsize=4096)
def function_of(expression: str) -> Callable[[list[int]], Any]:
    """The function of a body that this grammar wrote itself (never of a policy's text)."""
    scope = {"__builtins__": _SAFE_BUILTINS}
    run: Callable[[list[int]], Any] = eval(f"lambda v: {expression}", scope)
    return run


def _task(problem: Problem, name: str, split: Split, seed: int) -> Task:
    solution = body(problem.program)
    run = function_of(solution)
    choices: list[Choice] = [part.choice for part in problem.program.values()]
    tags = ("open",) if any(choice.is_open for choice in choices) else ()
    spec = TaskSpec(
        id=f"list-functions/{name}",
        instruction=instruction(problem.program),
        split=split,
        domain="list-functions",
        language="python",
        difficulty=str(len(choices)),
        tags=tags,
        checks=(
            _check("visible", visible=True),
            _check("hidden", visible=False),
        ),
        rubric=Rubric(combine="weighted", solved_bonus=0.7),
        agent=AgentSpec(
            tool="answer",
            answer_file="solution.py",
            answer_prefix=ANSWER_PREFIX,
            max_turns=3,
            max_tokens_per_turn=32,
            feedback="compact",
            turn_penalty=0.05,
        ),
        seed=seed,
    )
    return Task(
        spec,
        environment={"visible.json": _cases(run, problem.visible)},
        tests={"hidden.json": _cases(run, problem.hidden)},
        solution={"solution.py": f"{ANSWER_PREFIX}{solution}\n".encode()},
    )


def _check(name: str, *, visible: bool) -> ValuesCheck:
    return ValuesCheck(
        name=name,
        visible=visible,
        file="solution.py",
        function="f",
        cases=f"{name}.json",
        timeout_s=2.0,
    )


def _cases(run: Callable[[list[int]], Any], inputs: Inputs) -> bytes:
    return dump_cases([Case((list(values),), expected=run(list(values))) for values in inputs])
