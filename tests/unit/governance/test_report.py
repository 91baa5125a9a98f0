"""The report: complete for a finished run, honest about a partial one, safe with any text."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.governance.example_run import (
    HOSTILE,
    START_S,
    example_trajectories,
    hostile_trajectory,
    store_of,
    write_run,
)
from trialyard.core.errors import StoreError
from trialyard.core.trajectory import Trajectory
from trialyard.governance import report
from trialyard.governance.report import write_report
from trialyard.testing.storage import MemoryTrajectories

VOID = {"meta", "img", "br", "link", "input", "hr"}


class _Page(HTMLParser):
    """Collects tags and text; fails on a tag that is closed out of order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], "a tag was left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.text += data


@pytest.fixture(autouse=True)
def _without_bitmap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the PNG takes most of the time; the tests about it ask for `bitmap`."""
    if "bitmap" not in request.fixturenames:
        monkeypatch.setattr(report, "write_png", lambda run, path: False)


@pytest.fixture
def bitmap() -> None:
    """Draw the PNG in this test."""


def _report(directory: Path, records: list[Trajectory]) -> _Page:
    path = write_report(directory, store_of(records))
    assert path == directory / "report.html"
    return _Page(path.read_text("utf-8"))


def _plain(text: str) -> str:
    return text.replace("\u202f", " ")


def test_a_finished_run_is_told_completely(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    page = _report(tmp_path / "run", example_trajectories())
    text = _plain(page.text)
    for wanted in (
        "quickstart",
        "finished",
        "15,360",  # rollouts
        "30.9 %",
        "81.1 %",
        "+50.2 points",
        "79.1–83.1 %",
        "held-out, greedy",
        "8,520",  # trajectories of staleness 1
        "environment",
        "box-4b1f09c2d1aa was killed from outside",
        "Corrected after a failed try",
        "fails here, mended in turn 2",
        "passed 1 of 4; f([4, 7, -2]) got 11 want 8",
        "hidden tests: 2 of 8 passed",
        "max_staleness = 2",
    ):
        assert wanted in text, wanted
    assert "What is missing" not in text


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    page = _report(tmp_path / "run", example_trajectories())
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {"src", "href", "srcset"} & names
    html = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "@import" not in html
    assert "url(" not in html
    assert "default-src 'none'" in html


@pytest.mark.usefixtures("bitmap")
def test_the_curve_is_an_svg_and_a_png_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    _report(tmp_path / "run", [])
    root = ElementTree.parse(tmp_path / "run" / "learning_curve.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = _plain("".join(root.itertext()))
    assert "After RL, sampled: 81.1 % (79.1–83.1 %)" in text
    png = (tmp_path / "run" / "learning_curve.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(png) > 10_000


@pytest.mark.usefixtures("bitmap")
def test_text_of_the_run_never_becomes_markup(tmp_path: Path) -> None:
    write_run(tmp_path / "plain")
    clean = _report(tmp_path / "plain", [hostile_trajectory()])
    directory = tmp_path / "run"
    write_run(directory)
    (directory / "config.resolved.toml").write_text(f"# {HOSTILE}\n")
    summary = json.loads((directory / "summary.json").read_text())
    summary |= {"name": HOSTILE, "faults": {HOSTILE: 2}, "wall_s": {HOSTILE: 3.0}}
    summary |= {"staleness": {HOSTILE: 5}, "seed": HOSTILE}
    (directory / "summary.json").write_text(json.dumps(summary))
    fields = {"where": HOSTILE, "fault": HOSTILE, "message": HOSTILE, "task_id": HOSTILE}
    with (directory / "events.jsonl").open("a") as file:
        for event in (
            {"kind": "fault", "time_s": START_S, "attempt": HOSTILE, **fields},
            {"kind": "evaluation", "time_s": START_S + 9, "label": HOSTILE, "greedy": 0.5},
            {"kind": "phase", "time_s": START_S + 9, "name": HOSTILE, "state": "start"},
            {"kind": HOSTILE, "time_s": HOSTILE},
        ):
            file.write(json.dumps(event) + "\n")
    page = _report(directory, [hostile_trajectory()])
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count("<script>alert(1)</script>") > clean.text.count("<script>") > 5
    html = (directory / "report.html").read_text("utf-8")
    assert not re.search("[\x00\x1b\u202e]", html)
    assert "\u27e8U+202E\u27e9" in html
    ElementTree.parse(directory / "learning_curve.svg")


def test_a_run_that_goes_on_says_what_is_missing(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=12, finished=False)
    text = _plain(_report(tmp_path / "run", example_trajectories()).text)
    assert "not finished" in text
    assert "summary.json is missing" in text
    assert "'After RL' has not been made" in text
    assert "1,536" in text  # rollouts, counted from the events
    assert "852" in text  # staleness 1, from the events
    assert "from before training to after SFT" in text


def test_an_empty_directory_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page = _Page(write_report(tmp_path).read_text("utf-8"))
    for wanted in (
        "config.resolved.toml is missing",
        "events.jsonl is missing",
        "no reinforcement-learning step",
        "store was not opened",
        "Nothing to draw yet",
    ):
        assert wanted in page.text


def test_torn_and_odd_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=5)
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": NaN, "time_s": Infinity}\n')
        file.write('{"kind": "step", "step": 3, "solve_rate": "high", "staleness": [1]}\n')
        file.write('[1, 2]\n{"kind": 7}\n{"kind": "st')
    (tmp_path / "run" / "summary.json").write_text("{")
    text = _report(tmp_path / "run", []).text
    assert "3 unreadable line(s) of events.jsonl" in text
    assert "summary.json cannot be read" in text


def test_a_pause_between_crash_and_resume_does_not_stretch_the_curve(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=4, finished=False)
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        for after_s in (86_400.0, 86_403.0, 86_400.0):
            event = {"kind": "step", "step": 5, "time_s": START_S + after_s, "solve_rate": 0.5}
            file.write(json.dumps(event) + "\n")
    text = _plain(_report(tmp_path / "run", []).text)
    assert "active for 11 min" in text  # 90 s of work, a pause cut to 10 min, 3 s


def test_a_store_that_cannot_be_read_leaves_the_rest_of_the_page(tmp_path: Path) -> None:
    class Broken(MemoryTrajectories):
        def load(self, ids: object) -> list[Trajectory]:
            raise StoreError("segment 000001, batch 3 is damaged")

    write_run(tmp_path / "run")
    broken = Broken()
    broken.append(example_trajectories())
    html = write_report(tmp_path / "run", broken).read_text("utf-8")
    assert "segment 000001, batch 3 is damaged" in html
    assert "Held-out tasks" in html


def test_a_directory_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="was not written"):
        write_report(tmp_path / "nowhere")
