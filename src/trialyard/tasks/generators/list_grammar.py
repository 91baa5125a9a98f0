"""The language of the list-function tasks: choices per slot, their English and their code.

A program is a pipeline of slots (filter, map, order, end), each filled by one choice and
its constant. Choices that a reader can take for one another share a *family*; the split
between training and held-out tasks is made on families, so that no reading leaks.

`{k}` is the constant, `{c}` the code of what comes before. Where `readings` has several
entries the English does not say which is meant: only the tests do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Slot = Literal["filter", "map", "order", "end"]
SLOTS: tuple[Slot, ...] = ("filter", "map", "order", "end")
INTRO = "Complete f(v), v a list of integers:"


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to fill a slot. `mistake` is what a sloppy reader takes it for."""

    family: str
    english: str
    readings: tuple[str, ...]
    mistake: str = ""
    constants: tuple[int, ...] = ()

    @property
    def is_open(self) -> bool:
        """The English leaves something to be read off an example."""
        return len(self.readings) > 2 or (bool(self.constants) and "{k}" not in self.english)

    @property
    def is_ambiguous(self) -> bool:
        return len(self.readings) == 2


@dataclass(frozen=True, slots=True)
class Part:
    """A filled slot: the choice, the reading that holds, and the constant (0 when unused)."""

    choice: Choice
    code: str
    k: int = 0

    @property
    def english(self) -> str:
        return self.choice.english.format(k=self.k)

    @property
    def pair(self) -> tuple[str, int]:
        """Primitive and constant, as the split sees them."""
        return (self.choice.english, self.k)


Program = Mapping[Slot, Part]

_SMALL = tuple(range(1, 9))
_SLICE = (1, 2, 3, 4)

CHOICES: Mapping[Slot, tuple[Choice, ...]] = MappingProxyType(
    {
        "filter": (
            Choice("low", "keep those above {k}", ("x>{k}",), constants=_SMALL),
            Choice("low", "keep those at least {k}", ("x>={k}",), "x>{k}", _SMALL),
            Choice("low", "keep those from {k}", ("x>={k}", "x>{k}"), constants=_SMALL),
            Choice("high", "keep those below {k}", ("x<{k}",), constants=_SMALL),
            Choice("high", "keep those at most {k}", ("x<={k}",), "x<{k}", _SMALL),
            Choice("parity", "keep the even ones", ("x%2==0",)),
            Choice("parity", "keep the odd ones", ("x%2==1",), "x%2==0"),
            Choice("equal", "leave out every {k}", ("x!={k}",), "x=={k}", _SMALL),
        ),
        "map": (
            Choice("shift", "add {k}", ("x+{k}",), constants=_SMALL),
            Choice("shift", "subtract {k}", ("x-{k}",), "x+{k}", _SMALL),
            Choice("scale", "multiply by {k}", ("x*{k}",), constants=(3, 4, 5, 6)),
            Choice("scale", "double each", ("x*2",), "x+2"),
            Choice("square", "square each", ("x*x",), "x*2"),
            Choice("sign", "negate each", ("-x",)),
            Choice("sign", "take absolute values", ("abs(x)",), "-x"),
        ),
        "order": (
            Choice("ends", "take the first {k}", ("{c}[:{k}]",), constants=_SLICE),
            Choice("ends", "take the last {k}", ("{c}[-{k}:]",), "{c}[{k}:]", _SLICE),
            Choice("ends", "drop the first {k}", ("{c}[{k}:]",), constants=_SLICE),
            Choice("ends", "drop the last {k}", ("{c}[:-{k}]",), "{c}[:{k}]", _SLICE),
            Choice("sort", "sort upward", ("sorted({c})",)),
            Choice("sort", "sort downward", ("sorted({c})[::-1]",), "{c}[::-1]"),
            Choice("sort", "order them", ("sorted({c})", "sorted({c})[::-1]")),
            Choice("sort", "reverse them", ("{c}[::-1]",)),
            Choice("stride", "take every second", ("{c}[::2]",), "{c}[2:]"),
        ),
        "end": (
            Choice("total", "return the sum", ("sum({c})",)),
            Choice("total", "return how many", ("len({c})",), "sum({c})"),
            Choice("extreme", "return the largest", ("max({c},default=0)",)),
            Choice("extreme", "return the smallest", ("min({c},default=0)",), "max({c},default=0)"),
            Choice(
                "form",
                "return them in the wanted form",
                ("{c}", "tuple({c})", "set({c})", "[{c}]", "str({c})", "({c},)"),
            ),
        ),
    }
)


def instruction(program: Program) -> str:
    """The English specification."""
    steps = ", ".join(program[slot].english for slot in SLOTS if slot in program)
    return f"{INTRO} {steps}."


def body(program: Program) -> str:
    """The one-line expression over `v`."""
    kept = program.get("filter")
    mapped = program.get("map")
    code = "v"
    if kept or mapped:
        value = mapped.code.format(k=mapped.k) if mapped else "x"
        condition = f" if {kept.code.format(k=kept.k)}" if kept else ""
        code = f"[{value} for x in v{condition}]"
    for part in (program.get("order"), program["end"]):
        if part:
            code = part.code.format(c=code, k=part.k)
    return code
