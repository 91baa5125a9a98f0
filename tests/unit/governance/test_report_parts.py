"""Parts of the report: choosing samples, drawing charts, writing figures."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.unit.governance.example_run import (
    ALL_PASSED,
    MENDED,
    example_trajectories,
    store_of,
    turn,
    verdict,
)
from trialyard.core.trajectory import CommandRecord, Trajectory
from trialyard.governance.report_chart import Chart, Line, draw, running_mean, tick_name, ticks
from trialyard.governance.report_samples import Correction, choose, correction
from trialyard.governance.report_text import compact, duration, escaped, percent, points
from trialyard.testing.storage import MemoryTrajectories


def _with(*observations: str) -> Trajectory:
    first = example_trajectories()[0]
    turns = tuple(turn(f"try {n}", seen, "") for n, seen in enumerate(observations))
    return replace(first, turns=turns)


@pytest.mark.parametrize(
    ("observations", "found"),
    [
        ((MENDED, ALL_PASSED), Correction(0, 1)),
        ((MENDED, "passed 3 of 4; f([1]) got 1 want 2", ALL_PASSED), Correction(0, 2)),
        (("2 of 4 visible cases passed.\nf([1]): got 1, want 2", ALL_PASSED), Correction(0, 1)),
        ((ALL_PASSED,), None),
        ((MENDED, "passed 3 of 4; f([1]) got 1 want 2"), None),
        (("no counts here", ALL_PASSED), None),
        ((), None),
    ],
)
def test_a_correction_is_a_failing_observation_that_later_passes(
    observations: tuple[str, ...], found: Correction | None
) -> None:
    assert correction(_with(*observations)) == found


def test_commands_count_by_their_exit_and_only_for_the_same_command() -> None:
    session = example_trajectories()[3]
    assert correction(session) == Correction(0, 2)
    other = CommandRecord(("true",), "exited", 0, 0.1, b"", b"")
    unrelated = replace(session.turns[2], commands=(other,))
    assert correction(replace(session, turns=(*session.turns[:2], unrelated))) is None


def test_samples_show_each_kind_and_no_task_twice() -> None:
    records = example_trajectories()
    copies = [replace(r, id=f"{r.id}-{n}") for n in range(200) for r in records]
    ungraded = replace(
        records[0],
        id="ungraded",
        task_id="lost",
        verdict=verdict(0).model_copy(
            update={"status": "ungraded", "fault": "environment", "reward": None}
        ),
    )
    samples = choose(store_of([*copies, ungraded]))
    assert samples.num_stored == 801
    assert {t.task_id for t in samples.corrected} == {"test-000017", "mend-the-parser"}
    assert [t.task_id for t in samples.best] == ["test-000042"]
    assert [t.task_id for t in samples.worst] == ["test-000103"]


def test_only_a_bounded_number_of_records_is_loaded() -> None:
    asked: list[int] = []

    class Counting(MemoryTrajectories):
        def load(self, ids: object) -> list[Trajectory]:
            assert isinstance(ids, list)
            asked.append(len(ids))
            return super().load(ids)

    first = example_trajectories()[0]
    counting = Counting()
    counting.append([replace(first, id=str(n)) for n in range(5000)])
    choose(counting)
    assert asked == [240]
    choose(Counting())
    assert asked == [240, 0]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.5, 1.0]),
        (0, 7.4, [0, 5]),
        (-0.07, 0.05, [-0.05, 0, 0.05]),
        (0, 12_000, [0, 5000, 10_000]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 3) == pytest.approx(expected)


def test_tick_names_have_the_decimals_of_their_axis() -> None:
    assert [tick_name(v, [0, 0.05]) for v in (-0.05, 0, 0.05)] == ["−0.05", "0.00", "0.05"]
    assert tick_name(10_000, [0, 5000]) == "10,000"


def test_a_running_mean_looks_back_only() -> None:
    assert running_mean([(1, 2), (2, 4), (3, 12)], 2) == [(1, 2), (2, 3), (3, 8)]


@pytest.mark.parametrize("points_of", [[], [(1.0, 0.5)], [(1.0, 3.0), (2.0, 3.0)], [(5.0, -1e9)]])
def test_any_series_gives_a_sound_drawing(points_of: list[tuple[float, float]]) -> None:
    drawn = draw(Chart("title", "step", [Line("series", points_of, "c1", 3)]))
    root = ElementTree.fromstring(drawn)
    assert root.get("viewBox") == "0 0 360 220"
    assert "nan" not in drawn.lower().replace("nance", "")


def test_higher_values_are_drawn_higher() -> None:
    drawn = ElementTree.fromstring(draw(Chart("t", "x", [Line("", [(0, 1), (1, 9)], "c1")])))
    (path,) = [e for e in drawn.iter() if e.tag.endswith("path")]
    (_, first_y), (_, last_y) = (pair.split() for pair in path.get("d", "")[1:].split("L"))
    assert float(first_y) > float(last_y)


def test_figures_read_as_people_write_them() -> None:
    assert percent(0.8114) == "81.1\u202f%"
    assert percent(None) == "–"
    assert points(-0.0213) == "−2.1 points"
    assert [duration(s).replace("\u202f", " ") for s in (0, 0.031, 42, 425, 11_530)] == [
        "0 s",
        "31 ms",
        "42 s",
        "7 min 05 s",
        "3 h 12 min",
    ]
    assert [compact(v) for v in (44012, 3, 1.234, 45.12, 1234.5)] == [
        "44,012",
        "3",
        "1.23",
        "45.1",
        "1,234",
    ]


def test_long_text_is_cut_and_says_by_how_much() -> None:
    shown = escaped("x" * 9000)
    assert shown.count("x") == 6000
    assert "3,000 more characters" in shown
