"""Task directories: what they hold comes back, and what is wrong is said with its place."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialyard.core.cases import Case, dump_cases
from trialyard.core.errors import NotFoundError, TaskError
from trialyard.core.sandbox import Limits
from trialyard.core.task import (
    AgentSpec,
    Rubric,
    ScriptCheck,
    Task,
    TaskSpec,
    TestsCheck,
    ValuesCheck,
)
from trialyard.tasks.directory import find_tasks, load_task, save_task

CASES = dump_cases([Case((1,), expected=2)])


def make_task(**changes: object) -> Task:
    fields = {
        "id": "demo/add",
        "instruction": "Add.\nÜmlaut — no newline at end",
        "checks": (ValuesCheck(name="hidden", file="a.py", function="f", cases="h.json"),),
        **changes,
    }
    return Task(
        spec=TaskSpec.model_validate(fields),
        environment={"src/a.py": b"x = 1\r\n", "data.bin": bytes(range(256))},
        tests={"h.json": CASES},
        solution={"a.py": b"def f(x): return x + 1\n"},
    )


def write_harbor(path: Path, manifest: str = 'version = "1.0"\n') -> Path:
    (path / "tests").mkdir(parents=True)
    (path / "environment").mkdir()
    (path / "task.toml").write_text(manifest)
    (path / "instruction.md").write_text("Do it.\n")
    (path / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (path / "environment" / "Dockerfile").write_text("FROM debian\n")
    return path


TASKS = [
    make_task(),
    make_task(
        split="test",
        image="debian@sha256:1",
        workdir="/app",
        difficulty="hard",
        tags=("a", 'quote"\\'),
        artifacts=("/out/x",),
        protected=("tests/*",),
        seed=7,
        grade_at="turn",
        grader_timeout_s=12.5,
        limits=Limits(cpus=0.5, memory_bytes=(64 << 20) + 1, disk_bytes=32 << 20, pids=9),
        agent=AgentSpec(tool="shell", timeout_s=33.0, answer_prefix="def f(x):\n\t"),
        rubric=Rubric(combine="min", threshold=0.25, solved_bonus=0.5, tamper="report"),
        checks=(
            ValuesCheck(name="v", file="a.py", function="f", cases="h.json", visible=True),
            TestsCheck(name="t", paths=("t.py",), expected=("t.py::a[1 - x]",), weight=2.5),
            ScriptCheck(name="s", required=True, timeout_s=5),
        ),
        metadata={"origin": {"licence": "CC"}, "list": [1, 2.5, "x"], "none": None},
    ),
]


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_task_comes_back_the_same(tmp_path: Path, task: Task) -> None:
    save_task(task, tmp_path / "t")
    loaded = load_task(tmp_path / "t")
    assert loaded.hash == task.hash
    assert loaded.spec.model_copy(update={"metadata": {}}) == task.spec.model_copy(
        update={"metadata": {}}
    )
    assert (loaded.environment, loaded.tests) == (task.environment, task.tests)
    save_task(loaded, tmp_path / "t")
    assert load_task(tmp_path / "t").spec == loaded.spec


@settings(max_examples=30, deadline=None)
@given(text=st.text(max_size=40), tags=st.lists(st.text(max_size=10), max_size=3))
def test_any_text_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, text: str, tags: list[str]
) -> None:
    text = text.encode("utf-8", "replace").decode()
    tags = [tag.encode("utf-8", "replace").decode() for tag in tags]
    task = make_task(
        instruction=text, tags=tuple(tags), agent=AgentSpec(answer_prefix=text), domain=text
    )
    path = tmp_path_factory.mktemp("task") / "t"
    save_task(task, path)
    assert load_task(path).hash == task.hash


def test_harbors_own_task_gets_a_script_check_and_a_shell_agent(tmp_path: Path) -> None:
    manifest = """
version = "1.0"
artifacts = ["/out/report"]
[task]
name = "org/name"
authors = [{name = "A", email = "a@example.org"}]
[metadata]
difficulty = "easy"
category = "files"
tags = ["x"]
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 90
[environment]
docker_image = "img:1"
cpus = 2
memory = "4G"
storage_mb = 2048
network_mode = "public"
[[environment.mcp_servers]]
name = "s"
"""
    task = load_task(write_harbor(tmp_path / "t", manifest))
    spec = task.spec
    assert spec.id == "org/name"
    assert spec.checks == (ScriptCheck(name="test.sh", required=True),)
    assert spec.agent == AgentSpec(tool="shell", timeout_s=120.0)
    assert spec.grader_timeout_s == 90
    assert (spec.image, spec.difficulty, spec.tags) == ("img:1", "easy", ("x",))
    assert spec.limits.memory_bytes == 4 << 30
    assert (spec.limits.disk_bytes, spec.limits.cpus) == (2 << 30, 2)
    assert spec.artifacts == ("/out/report",)
    assert spec.metadata["category"] == "files"
    assert "Dockerfile" in task.environment
    save_task(task, tmp_path / "again")
    again = load_task(tmp_path / "again")
    assert again.hash == task.hash
    assert again.spec.metadata == spec.metadata
    assert (tmp_path / "again" / "task.toml").read_text().count("mcp_servers") == 1


def test_the_name_of_a_nameless_task_is_its_directory(tmp_path: Path) -> None:
    assert load_task(write_harbor(tmp_path / "my-task")).id == "my-task"


HARBOR = 'schema_version = "1.1"\n'
BROKEN = [
    ("x = = 1\n", r"task\.toml.*line 1"),
    ('schema_version = "9.9"\n', r"schema_version '9\.9'"),
    (HARBOR + "[trialyard]\nrubrik = 1\n", r"rubrik.*did you mean 'rubric'"),
    (HARBOR + "[trialyard.rubric]\ncombine = 'mean'\n", r"rubric\.combine.*'mean'"),
    (HARBOR + "[trialyard.agent]\nmax_turn = 3\n", r"agent\.max_turn: .*'max_turns'"),
    (
        HARBOR + "[[trialyard.checks]]\nkind='script'\nname='a'\nwheight=1\n",
        r"checks\.0\.script\.wheight: .*'weight'",
    ),
    (HARBOR + "[environment]\nmemory = 'lots'\n", r"environment\.memory"),
    (HARBOR + "[environment]\ngpus = 1\n", r"environment\.gpus"),
    (HARBOR + "environment = 3\n", r"\[environment\]"),
    (HARBOR + "[[steps]]\nname = 'a'\n", r"\[\[steps\]\]"),
    (HARBOR + "[task]\nname = 'a b'\n", r"\[task\] name"),
    (HARBOR + "[agent]\ntimeout_sec = -1\n", r"\[agent\] timeout_sec"),
    (HARBOR + "[agent]\ntimeout_sec = nan\n", r"\[agent\] timeout_sec"),
]


@pytest.mark.parametrize(("manifest", "message"), BROKEN)
def test_a_broken_manifest_is_named_with_its_field(
    tmp_path: Path, manifest: str, message: str
) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        load_task(write_harbor(tmp_path / "t", manifest))
    assert "task.toml" in str(caught.value)
    assert str(caught.value).count("\n") <= 1


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        load_task(tmp_path / "nowhere")
    path = write_harbor(tmp_path / "t")
    (path / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError, match=r"test\.sh"):
        load_task(path)
    (path / "instruction.md").unlink()
    with pytest.raises(TaskError, match=r"instruction\.md"):
        load_task(path)
    (path / "task.toml").unlink()
    with pytest.raises(TaskError, match=r"task\.toml"):
        load_task(path)


@pytest.mark.parametrize("place", ["tests/link", "environment/dir", "instruction.md", "solution"])
def test_no_link_is_followed_out_of_a_task(tmp_path: Path, place: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("secret")
    path = write_harbor(tmp_path / "t")
    target = tmp_path / "secret" / ("" if place in ("environment/dir", "solution") else "file")
    (path / place).unlink(missing_ok=True)
    (path / place).symlink_to(target)
    with pytest.raises(TaskError, match="link"):
        load_task(path)


def test_a_fifo_in_a_task_does_not_hang(tmp_path: Path) -> None:
    path = write_harbor(tmp_path / "t")
    os.mkfifo(path / "tests" / "pipe")
    with pytest.raises(TaskError, match="not a regular file"):
        load_task(path)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = write_harbor(tmp_path / "t")
    with (path / "tests" / "big").open("wb") as file:
        file.truncate(33 << 20)
    with pytest.raises(TaskError, match="big"):
        load_task(path)


def test_saving_replaces_a_task_but_nothing_else(tmp_path: Path) -> None:
    task = make_task()
    save_task(task, tmp_path / "t")
    (tmp_path / "t" / "tests" / "stale.py").write_text("old")
    save_task(task, tmp_path / "t")
    assert load_task(tmp_path / "t").hash == task.hash
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(TaskError, match="mine"):
        save_task(task, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"


def test_a_file_that_leaves_the_task_is_not_written(tmp_path: Path) -> None:
    task = Task(spec=make_task().spec, tests={"../../evil": b""})
    with pytest.raises(TaskError, match="evil"):
        save_task(task, tmp_path / "a" / "t")
    assert list(tmp_path.rglob("*evil*")) == []
    assert list((tmp_path / "a").iterdir()) == []


def test_tasks_are_found_in_order_and_not_inside_each_other(tmp_path: Path) -> None:
    for name in ("b", "a", "deep/c"):
        save_task(make_task(), tmp_path / name)
    write_harbor(tmp_path / "a" / "tests" / "inner")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert find_tasks(tmp_path) == [tmp_path / "a", tmp_path / "b", tmp_path / "deep" / "c"]
    assert find_tasks(tmp_path / "a") == [tmp_path / "a"]
    with pytest.raises(NotFoundError):
        find_tasks(tmp_path / "missing")
