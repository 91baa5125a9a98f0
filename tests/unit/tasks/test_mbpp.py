"""The MBPP importer: asserts become cases, broken records cost only themselves."""

import json
from pathlib import Path

import pytest

from tests.data import MBPP
from trialyard.core.cases import Case, load_cases
from trialyard.core.errors import NotFoundError, TaskError
from trialyard.core.task import Task, ValuesCheck
from trialyard.tasks.importers.asserts import case_of, entry_function
from trialyard.tasks.importers.mbpp import import_mbpp, import_to_directory
from trialyard.tasks.importers.result import ImportProblem

needs_mbpp = pytest.mark.skipif(not MBPP.is_file(), reason="MBPP's data file is not here")

RECORD = {
    "task_id": 601,
    "text": "Write a function to double.",
    "code": "def double(x):\r\n    return 2 * x",
    "test_list": ["assert double(2) == 4", "assert double(-1)==-2", "assert double('a') == 'aa'"],
    "test_setup_code": "",
    "challenge_test_list": [],
}

FORMS = [
    ("f(1, [2], k='x') == (1, 2.5)", Case((1, [2]), {"k": "x"}, (1, 2.5), "equal")),
    ("4 == f(-1)", Case((-1,), expected=4, compare="equal")),
    ("f(1.0/4) == 0.25", Case((0.25,), expected=0.25, compare="equal")),
    ("f() == set([1, 2])", Case(expected={1, 2}, compare="equal")),
    ("f(2) is True", Case((2,), expected=True, compare="equal")),
    ("f(2)", Case((2,), expected=True, compare="truth")),
    ("not f(2)", Case((2,), expected=False, compare="truth")),
    ("set(f(2)) == {1}", Case(expression="set(f(2))", expected={1}, compare="equal")),
    ("f(P(1)) == 3", Case(expression="f(P(1))", expected=3, compare="equal")),
    ("f([*range(2)]) == 3", Case(expression="f([*range(2)])", expected=3, compare="equal")),
    ("f(2) > 3", Case(expression="f(2) > 3", expected=True, compare="truth")),
    ("math.isclose(f(2), 0.5, rel_tol=1e-3)", Case((2,), {}, 0.5, "equal", 1e-3)),
    ("abs(f(2) - 1.5) < 0.01", Case((2,), {}, 1.5, "equal", 0.01)),
    (
        "f(2) == sys.getsizeof(3)",
        Case((2,), compare="equal", expected_source="__import__('sys').getsizeof(3)"),
    ),
]


@pytest.mark.parametrize(("assertion", "case"), FORMS)
def test_an_assert_becomes_the_case_that_it_means(assertion: str, case: Case) -> None:
    assert case_of(f"assert {assertion}", "f") == case


def test_with_set_up_code_the_call_runs_after_it() -> None:
    case = case_of("assert f(root) == 3", "f", setup="root = 1")
    assert (case.expression, case.setup, case.expected) == ("f(root)", "root = 1", 3)


def test_the_expected_value_never_stands_in_what_the_candidate_gets() -> None:
    for assertion, _ in FORMS[:9]:
        case = case_of(f"assert {assertion} ", "f")
        assert "==" not in case.expression


@pytest.mark.parametrize("test", ["f(1)", "assert f(1); assert f(2)", "assert f(", "assert f(1\0)"])
def test_what_is_no_assert_is_refused(test: str) -> None:
    with pytest.raises(TaskError):
        case_of(test, "f")


def test_the_entry_function_is_the_one_that_the_code_defines() -> None:
    tests = ["assert sorted(run(Node(1))) == helper(2)"]
    assert entry_function(tests, "class Node: pass\ndef run(x): pass") == "run"
    assert entry_function(["assert sum(1, 2) == 3"], "def sum(a, b): return a + b") == "sum"
    with pytest.raises(TaskError, match="no test calls"):
        entry_function(["assert 1 == 1"], "def f(): pass")


def write_jsonl(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return path


def test_a_record_becomes_a_task(tmp_path: Path) -> None:
    (task,) = import_mbpp(write_jsonl(tmp_path / "m.jsonl", RECORD))
    assert isinstance(task, Task)
    assert (task.id, task.spec.split) == ("mbpp/601", "train")
    for wanted in ("to double.", "`double`", "assert double(2) == 4", "solution.py"):
        assert wanted in task.spec.instruction
    assert "double(-1)" not in task.spec.instruction
    visible, hidden = task.spec.checks
    assert isinstance(visible, ValuesCheck)
    assert isinstance(hidden, ValuesCheck)
    assert (visible.visible, hidden.visible, hidden.function) == (True, False, "double")
    assert len(load_cases(task.tests[visible.cases])) == 1
    assert [case.expected for case in load_cases(task.tests[hidden.cases])] == [4, -2, "aa"]
    assert task.environment == {}
    assert task.solution["solution.py"] == b"def double(x):\n    return 2 * x"


def test_broken_records_are_reported_with_their_line_and_the_others_go_on(tmp_path: Path) -> None:
    source = write_jsonl(
        tmp_path / "m.jsonl",
        RECORD,
        "{broken",
        {**RECORD, "task_id": "602"},
        {**RECORD, "task_id": 603, "test_list": []},
        {**RECORD, "task_id": 604, "test_list": ["assert double("]},
        {**RECORD, "task_id": 605, "code": "def double(:"},
        "",
        "[" * 5000,
        RECORD,
        {**RECORD, "task_id": 11},
    )
    items = list(import_mbpp(source))
    tasks = [item.id for item in items if isinstance(item, Task)]
    problems = [item for item in items if isinstance(item, ImportProblem)]
    assert tasks == ["mbpp/601", "mbpp/11"]
    assert [problem.line for problem in problems] == [2, 3, 4, 5, 6, 8, 9]
    assert "m.jsonl:3: field 'task_id'" in str(problems[1])


def test_importing_again_changes_nothing(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", RECORD, "{", {**RECORD, "task_id": 602})
    first = import_to_directory(source, tmp_path / "out")
    assert (len(first.written), first.imported, len(first.problems)) == (2, 2, 1)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    (tmp_path / "out" / "602" / "instruction.md").write_text("spoiled")
    again = import_to_directory(source, tmp_path / "out")
    assert [path.name for path in again.written] == ["602"]
    kept = tmp_path / "out" / "601" / "task.toml"
    assert kept.stat().st_mtime_ns == stamps[kept]


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.jsonl"):
        list(import_mbpp(tmp_path / "none.jsonl"))


@needs_mbpp
def test_all_of_mbpp_is_imported_in_its_splits() -> None:
    items = list(import_mbpp(MBPP))
    tasks = [item for item in items if isinstance(item, Task)]
    assert len(items) == len(tasks) == 974
    counts = {s: sum(t.spec.split == s for t in tasks) for s in ("train", "valid", "test")}
    assert counts == {"train": 374, "valid": 100, "test": 500}
    cases = [load_cases(task.tests["hidden.json"]) for task in tasks]
    plain_calls = sum(all(not c.expression and not c.expected_source for c in cs) for cs in cases)
    assert plain_calls == 968
