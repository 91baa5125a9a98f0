"""What the list-function tasks promise: seeded, sound, and a held-out split without overlap."""

import itertools

import pytest
from pydantic import ValidationError

from trialyard.core.cases import load_cases
from trialyard.core.errors import ConfigError
from trialyard.core.plain import same
from trialyard.core.task import Task, ValuesCheck
from trialyard.tasks.generators.list_functions import (
    ANSWER_PREFIX,
    DEFAULT,
    Difficulty,
    function_of,
    generate,
    misreadings,
    problems,
)
from trialyard.tasks.generators.list_grammar import CHOICES, body, instruction

TRAIN = generate(3, "train", 800)
TEST = generate(4, "test", 200)
VALID = generate(4, "valid", 50)


def solution_of(task: Task) -> str:
    return task.solution["solution.py"].decode().removeprefix(ANSWER_PREFIX).rstrip("\n")


def test_the_same_seed_gives_the_same_tasks_and_a_longer_list_starts_alike() -> None:
    again = generate(3, "train", 100)
    assert [task.hash for task in again] == [task.hash for task in TRAIN[:100]]
    assert {task.hash for task in generate(5, "train", 100)}.isdisjoint(t.hash for t in again)


def test_no_body_and_no_specification_is_shared_across_splits_and_seeds() -> None:
    for left, right in itertools.combinations([TRAIN, TEST, VALID], 2):
        assert set(map(solution_of, left)).isdisjoint(map(solution_of, right))
        assert {t.spec.instruction for t in left}.isdisjoint(t.spec.instruction for t in right)


def test_held_out_tasks_use_combinations_and_constants_that_training_never_shows() -> None:
    def combination(pairs: list[tuple[str, int]]) -> tuple[str, ...]:
        return tuple(family[english] for english, _ in pairs)

    family = {c.english: c.family for choices in CHOICES.values() for c in choices}
    train = [[p.pair for p in x.program.values()] for x in problems(3, "train", 800)]
    test = [[p.pair for p in x.program.values()] for x in problems(4, "test", 200)]
    seen_pairs = set(itertools.chain(*train))
    seen_combinations = {combination(pairs) for pairs in train}
    assert all(any(pair not in seen_pairs for pair in pairs) for pairs in test)
    assert all(combination(pairs) not in seen_combinations for pairs in test)


def test_the_reference_gives_what_the_cases_expect_and_inputs_are_held_out() -> None:
    for task in TEST[:100]:
        run = function_of(solution_of(task))
        visible = load_cases(task.environment["visible.json"])
        hidden = load_cases(task.tests["hidden.json"])
        assert (len(visible), len(hidden)) == (4, 8)
        assert all(same(run(list(c.args[0])), c.expected) for c in visible + hidden)
        inputs = [tuple(case.args[0]) for case in visible]
        assert not set(inputs) & {tuple(case.args[0]) for case in hidden}


def test_every_misreading_fails_a_visible_and_a_hidden_case() -> None:
    for problem in problems(7, "train", 150):
        right = function_of(body(problem.program))
        for wrong in map(function_of, misreadings(problem.program)):
            for inputs in (problem.visible, problem.hidden):
                assert any(not same(right(list(v)), wrong(list(v))) for v in inputs)


def test_the_agents_box_holds_the_visible_cases_only() -> None:
    task = TEST[0]
    assert set(task.environment) == {"visible.json"}
    assert set(task.tests) == {"hidden.json"}
    (visible,), (hidden,) = task.visible_checks, task.hidden_checks
    assert isinstance(visible, ValuesCheck)
    assert isinstance(hidden, ValuesCheck)
    assert (visible.cases, hidden.cases) == ("visible.json", "hidden.json")


def test_difficulty_sets_slots_and_what_is_left_open() -> None:
    plain = list(problems(1, "train", 60, Difficulty(max_slots=1, open_share=0)))
    full = list(problems(1, "train", 60, Difficulty(min_slots=3, max_slots=3, open_share=1)))
    assert {len(x.program) for x in plain} == {2}
    assert {len(x.program) for x in full} == {4}
    assert not any(x.program["end"].choice.is_open for x in plain)
    assert all(x.program["end"].choice.is_open for x in full)


def test_an_open_specification_does_not_tell_which_form_is_wanted() -> None:
    wanted: dict[str, set[str]] = {}
    for problem in problems(1, "train", 600):
        if problem.program["end"].choice.is_open:
            name = instruction(problem.program)
            wanted.setdefault(name, set()).add(problem.program["end"].code)
    assert max(map(len, wanted.values())) >= 2


def test_asking_for_more_than_there_is_ends_with_an_error() -> None:
    with pytest.raises(ConfigError, match="ask for fewer than 5000"):
        list(problems(1, "test", 5000, Difficulty(max_slots=1, open_share=0)))
    with pytest.raises(ValidationError, match="must not exceed"):
        Difficulty(min_slots=3, max_slots=DEFAULT.max_slots)
