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
from functools import cache, lru_cache
from typing import Any

from pydantic import Field, model_validator

from trialyard.core.cases import Case, dump_cases
from trialyard.core.errors import ConfigError
from trialyard.core.ids import derive_random, derive_seed
from trialyard.core.plain import same
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
_VALUES = range(-5, 10)
_MAX_MISSES = 20_000
_SAFE_BUILTINS = {
    function.__name__: function
    for function in (abs, len, list, max, min, set, sorted, str, sum, tuple)
}

Inputs = tuple[tuple[int, ...], ...]


class Difficulty(Record):
    """Knobs: how many slots besides the end, and how often something is left unsaid."""

    min_slots: int = Field(default=1, ge=1, le=3)
    max_slots: int = Field(default=2, ge=1, le=3)
    open_share: float = Field(default=0.5, ge=0, le=1)
    """Tasks whose result has a form that only the examples tell."""
    ambiguous_share: float = Field(default=0.1, ge=0, le=1)
    """Chance of an ambiguous word in each slot that has one."""

    @model_validator(mode="after")
    def _slots_in_order(self) -> "Difficulty":
        if self.min_slots > self.max_slots:
            raise ValueError("min_slots must not exceed max_slots")
        return self


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
    """Distinct problems; streams other than ``valid`` and ``test`` are training material.

    Raises `ConfigError` when the family holds no more distinct problems.
    """
    rng = derive_random(seed, "list-functions", stream)
    seen: set[str] = set()
    misses = 0
    while len(seen) < count:
        program = _draw_program(rng, difficulty)
        key = f"{instruction(program)} {body(program)}"
        fresh = key not in seen and _admits(stream, program)
        problem = _draw_problem(program, rng) if fresh else None
        misses = misses + 1 if problem is None else 0
        if misses > _MAX_MISSES:
            raise ConfigError(
                f"list-functions: no more than {len(seen)} distinct {stream} tasks found; "
                f"ask for fewer than {count} or raise max_slots"
            )
        if problem is not None:
            seen.add(key)
            yield problem


def is_held_out(program: Program) -> bool:
    """Whether the program is for evaluation: its combination and a constant are reserved."""
    return _reserved_for(program) != "train" and _has_reserved_constant(program)


def is_training(program: Program) -> bool:
    """Whether the program may be trained on: nothing about it is reserved."""
    return _reserved_for(program) == "train" and not _has_reserved_constant(program)


def _admits(stream: str, program: Program) -> bool:
    if stream in ("valid", "test"):
        return _reserved_for(program) == stream and _has_reserved_constant(program)
    return is_training(program)


def _reserved_for(program: Program) -> Split:
    """The split that owns the program's combination of families."""
    families = [f"{slot}:{program[slot].choice.family}" for slot in SLOTS if slot in program]
    return _owner(tuple(families))


@cache
def _owner(combination: tuple[str, ...]) -> Split:
    owners: dict[int, Split] = {0: "test", 1: "test", 2: "valid"}
    return owners.get(derive_seed(0, "combination", *combination) % 10, "train")


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
    right = function_of(body(program))
    rivals = [function_of(wrong) for wrong in misreadings(program)]
    for _ in range(tries):
        visible = _draw_inputs(program, rng, NUM_VISIBLE)
        hidden = _draw_inputs(program, rng, NUM_HIDDEN)
        if set(visible) & set(hidden):
            continue
        shown, kept = _results(right, visible), _results(right, hidden)
        if len(set(map(repr, kept))) < NUM_HIDDEN // 2:
            continue  # a constant function would nearly pass
        if all(_fails(rival, visible, shown) and _fails(rival, hidden, kept) for rival in rivals):
            return Problem(program, visible, hidden)
    return None


def _results(run: Callable[[list[int]], Any], inputs: Inputs) -> list[Any]:
    return [run(list(values)) for values in inputs]


def _fails(run: Callable[[list[int]], Any], inputs: Inputs, results: list[Any]) -> bool:
    return any(
        not same(run(list(values)), result) for values, result in zip(inputs, results, strict=True)
    )


def _draw_inputs(program: Program, rng: random.Random, count: int) -> Inputs:
    """Short lists of small integers; constants of the program are strewn in."""
    constants = [part.k for part in program.values() if 0 < part.k < 10] or [0]
    inputs = []
    for _ in range(count):
        values = rng.choices(_VALUES, k=rng.randint(5, 7))
        values[rng.randrange(len(values))] = rng.choice(constants)
        inputs.append(tuple(values))
    return tuple(inputs)


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
