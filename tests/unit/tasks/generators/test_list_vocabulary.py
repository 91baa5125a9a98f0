"""What the pieces promise: they cover the family, and code comes back as it was written."""

import pytest

from trialyard.core.task import Split
from trialyard.tasks.generators.list_demonstrator import demonstrations
from trialyard.tasks.generators.list_functions import ANSWER_PREFIX, Difficulty, generate
from trialyard.tasks.generators.list_vocabulary import join_pieces, split_pieces, vocabulary

SPLITS: tuple[Split, ...] = ("train", "test")
HARD = Difficulty(max_slots=3, ambiguous_share=0.5)


def test_pieces_are_distinct_and_few() -> None:
    pieces = vocabulary()
    assert len(pieces) == len(set(pieces)) <= 260


def test_every_instruction_and_body_is_covered_and_comes_back_exactly() -> None:
    known = set(vocabulary())
    for split in SPLITS:
        for task in generate(1, split, 150, HARD):
            text = task.solution["solution.py"].decode().removeprefix(ANSWER_PREFIX).rstrip("\n")
            assert known.issuperset(split_pieces(task.spec.instruction))
            assert known.issuperset(split_pieces(text))
            assert join_pieces(split_pieces(text)) == text
            assert len(split_pieces(text)) <= 28


def test_feedback_is_nearly_all_covered_and_short() -> None:
    known = set(vocabulary())
    contexts = [context for demo in demonstrations(1, 500) for context, _ in demo.turns]
    pieces = [split_pieces(context) for context in contexts]
    unknown = sum(piece not in known for row in pieces for piece in row)
    assert unknown < 0.002 * sum(map(len, pieces))
    assert max(map(len, pieces)) <= 48


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("x-3", ["x", "-", "3"]),
        ("[-2:]", ["[", "-2", ":", "]"]),
        ("got [1, -2] want 3", ["got", "[", "1", "-2", "]", "want", "3"]),
        ("error NameError want ()", ["error", "NameError", "want", "(", ")"]),
        ("keep those at least 3, double each.", ["keep those at least", "3", "double each"]),
    ],
)
def test_how_texts_are_split(text: str, pieces: list[str]) -> None:
    assert split_pieces(text) == pieces


def test_any_sequence_of_pieces_can_be_written() -> None:
    assert join_pieces(["x", "if", "x", "3", "4", "for x in v"]) == "x if x 3 4 for x in v"
    assert join_pieces([]) == ""
