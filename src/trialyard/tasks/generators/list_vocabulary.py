"""The pieces that the list-function tasks are written in: a small word-level vocabulary.

`split_pieces` finds the pieces of a text; what lies between them (white space, a comma
with a space, full stops) carries nothing and is dropped. `join_pieces` writes code from
pieces; for every body of the grammar it undoes `split_pieces` exactly.
"""

import re
from collections.abc import Iterable

from trialyard.tasks.generators.list_grammar import CHOICES, INTRO

_CODE = (
    *("for x in v", "if", "x", "v", "sorted(", "sum(", "len(", "max(", "min(", "abs("),
    *("tuple(", "set(", "str(", ",default=0", "::-1", "::2", "==", "!=", ">=", "<="),
    *("(", ")", "[", "]", "{", "}", ":", ",", "+", "-", "*", "%", "<", ">", "'", "..."),
)
SPACED = frozenset({"for x in v", "if"})
_FEEDBACK = (
    *("passed", "of", "f(", "got", "want", "error", "timeout", "not_run", "badvalue"),
    *("True", "False", "None", "NameError", "SyntaxError", "TypeError", "IndexError"),
    *("ValueError", "IndentationError", "ZeroDivisionError", "UnboundLocalError", "Error"),
)
_PHRASES = (
    INTRO,
    *sorted(
        {
            part.strip()
            for choices in CHOICES.values()
            for choice in choices
            for part in choice.english.split("{k}")
            if part.strip()
        }
    ),
)
_NUMBERS = tuple(str(number) for number in range(-60, 100))
_SIGNED = r"(?<![\w)\]])-\d+(?!\w)"


def _alternatives() -> str:
    fixed = {*_CODE, *_FEEDBACK, *_PHRASES}
    patterns = []
    for piece in sorted(fixed, key=lambda piece: (-len(piece), piece)):
        left = r"(?<!\w)" if piece[0].isalpha() else ""
        right = r"(?!\w)" if piece[-1].isalpha() else ""
        patterns.append(f"{left}{re.escape(piece)}{right}")
    return "|".join([_SIGNED, r"\d+(?!\w)", r", ", *patterns, r"\w+", r"[^\s.;]"])


PIECE = re.compile(_alternatives())


def vocabulary() -> list[str]:
    """Every piece, in a fixed order."""
    return list(dict.fromkeys([*_PHRASES, *_CODE, *_FEEDBACK, *_NUMBERS]))


def split_pieces(text: str) -> list[str]:
    """Pieces of a text; those outside `vocabulary` are unknown to a tokenizer."""
    return [piece for piece in PIECE.findall(text) if piece != ", "]


def join_pieces(pieces: Iterable[str]) -> str:
    """Code of pieces: spaces only before clauses and where two words would meet."""
    text = ""
    for piece in pieces:
        spaced = piece in SPACED or (text and _is_word(text[-1]) and _is_word(piece[:1]))
        text += f" {piece}" if text and spaced else piece
    return text


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
