"""What the demonstrator promises: true feedback, imperfect answers, training material only."""

from trialyard.tasks.generators.list_demonstrator import Sloppiness, demonstrations
from trialyard.tasks.generators.list_functions import generate

DEMOS = demonstrations(2, 400)
PERFECT = Sloppiness(misconception=0, slip=0, wrong_constant=0, follow_evidence=1)


def test_the_same_seed_gives_the_same_demonstrations() -> None:
    assert demonstrations(2, 50) == DEMOS[:50]
    assert demonstrations(3, 50) != DEMOS[:50]


def test_most_first_answers_are_wrong_but_some_episodes_succeed() -> None:
    first_try = sum(len(demo.turns) == 1 for demo in DEMOS) / len(DEMOS)
    assert 0.05 < first_try < 0.25
    assert any(len(demo.turns) == 2 for demo in DEMOS)
    assert max(len(demo.turns) for demo in DEMOS) == 3


def test_later_turns_show_feedback_with_a_wanted_value() -> None:
    for demo in DEMOS:
        for context, _ in demo.turns[1:]:
            assert context.startswith("passed ")
            assert " want " in context


def test_no_demonstration_is_on_a_held_out_task() -> None:
    test = {task.spec.instruction for task in generate(2, "test", 150)}
    assert test.isdisjoint(demo.turns[0][0] for demo in DEMOS)


def test_without_sloppiness_the_an_open_form_is_read_off_at_once() -> None:
    episodes = demonstrations(2, 200, sloppiness=PERFECT)
    assert sum(len(demo.turns) <= 2 for demo in episodes) > 0.9 * len(episodes)
