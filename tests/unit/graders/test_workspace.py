"""What of a submission reaches the grader's box."""

from trialyard.core.grader import Submission
from trialyard.core.task import Task, TaskSpec
from trialyard.graders.workspace import lay_out

SPEC = TaskSpec(
    id="t", instruction="", protected=("tests", "*.cfg", "/etc"), artifacts=("/out/model",)
)
TASK = Task(SPEC, environment={"a.py": b"1", "tests/t.py": b"assert 1", "b.py": b"2"})


def test_the_submission_lies_over_the_environment() -> None:
    workspace = lay_out(TASK, Submission({"a.py": b"new", "b.py": None, "sub/c.py": b"3"}))
    assert workspace.files == {
        "/work/a.py": b"new",
        "/work/tests/t.py": b"assert 1",
        "/work/sub/c.py": b"3",
    }
    assert workspace.removed == ("/work/b.py",)
    assert workspace.findings == ()


def test_touching_a_protected_path_is_reported_and_undone() -> None:
    changed = {
        "tests/t.py": b"pass",
        "tests/new.py": b"",
        "setup.cfg": b"x",
        "./tests/../a.py": b"",
    }
    workspace = lay_out(TASK, Submission({**changed, "tests/t2.py": None}))
    assert workspace.files["/work/tests/t.py"] == b"assert 1"
    assert "/work/setup.cfg" not in workspace.files
    assert {(f.kind, f.path) for f in workspace.findings} == {
        ("protected-path", "tests/t.py"),
        ("protected-path", "tests/new.py"),
        ("protected-path", "setup.cfg"),
    }
    removed = lay_out(TASK, Submission({"tests/t.py": None}))
    assert removed.files["/work/tests/t.py"] == b"assert 1"
    assert [finding.kind for finding in removed.findings] == ["protected-path"]


def test_an_unchanged_protected_file_is_no_finding() -> None:
    assert lay_out(TASK, Submission({"tests/t.py": b"assert 1"})).findings == ()


def test_paths_outside_the_workdir_never_arrive() -> None:
    files = {"../etc/passwd": b"x", "/root/x": b"x", "a/../../x": b"x", "/work2/y": b"x"}
    workspace = lay_out(TASK, Submission({**files, "/out/model/w": b"artifact"}))
    assert workspace.files["/out/model/w"] == b"artifact"
    assert len(workspace.files) == len(TASK.environment) + 1
    assert {finding.path for finding in workspace.findings} == set(files)
    assert {finding.kind for finding in workspace.findings} == {"outside-path"}


def test_what_cannot_be_laid_out_is_refused_with_the_reason() -> None:
    assert "disk" in lay_out(TASK, Submission({"big": b"x" * (257 << 20)})).refused
    assert "too long" in lay_out(TASK, Submission({"x" * 300: b""})).refused
    assert "both a file" in lay_out(TASK, Submission({"d": b"", "d/e": b""})).refused
    assert lay_out(TASK, Submission({"d/e": b""})).refused == ""
