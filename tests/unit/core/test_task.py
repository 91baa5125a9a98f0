"""Tasks: identity is content."""

from trialyard.core.task import AgentSpec, Task, TaskSpec, ValuesCheck

SPEC = TaskSpec(
    id="a/b",
    instruction="do",
    checks=(
        ValuesCheck(name="v", file="s.py", function="f", cases="v.json", visible=True),
        ValuesCheck(name="h", file="s.py", function="f", cases="h.json"),
    ),
)


def test_equal_content_has_an_equal_hash_and_any_change_another() -> None:
    task = Task(SPEC, {"a": b"1"}, {"t": b"2"}, {"s": b"3"})
    assert task.hash == Task(SPEC, {"a": b"1"}, {"t": b"2"}, {"s": b"3"}).hash
    others = [
        Task(SPEC, {"a": b"x"}, {"t": b"2"}, {"s": b"3"}),
        Task(SPEC, {"a": b"1"}, {"t": b"x"}, {"s": b"3"}),
        Task(SPEC, {"a": b"1"}, {"t": b"2"}, {"s": b"x"}),
        Task(SPEC.model_copy(update={"instruction": "x"}), {"a": b"1"}, {"t": b"2"}, {"s": b"3"}),
        Task(
            SPEC.model_copy(update={"agent": AgentSpec(max_turns=9)}),
            {"a": b"1"}, {"t": b"2"}, {"s": b"3"},
        ),
    ]  # fmt: skip
    assert len({task.hash, *(other.hash for other in others)}) == len(others) + 1


def test_metadata_is_not_identity() -> None:
    assert Task(SPEC.model_copy(update={"metadata": {"note": 1}})).hash == Task(SPEC).hash


def test_visible_checks_make_feedback_and_hidden_ones_the_reward() -> None:
    task = Task(SPEC)
    assert [c.name for c in task.visible_checks] == ["v"]
    assert [c.name for c in task.hidden_checks] == ["h"]
