"""Harbor's test.sh in a real box: a reward is a number in [0, 1], or there is none."""

import pytest

from tests.scenario.grading import grade, task_of
from trialyard.core.clock import SystemClock
from trialyard.core.errors import TaskError
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import ScriptCheck, Task
from trialyard.graders.fresh_box import FreshBoxGrader
from trialyard.graders.oracle import reference_submission

REWARD = "/logs/verifier/reward"


def script_task(script: str, timeout_s: float = 30.0) -> Task:
    check = ScriptCheck(name="test.sh", required=True, timeout_s=timeout_s)
    return task_of((check,), {"test.sh": script.encode(), "data.txt": b"42"})


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        (f"echo 1 > {REWARD}.txt", 1.0),
        (f"echo 0.25 > {REWARD}.txt; exit 3", 0.25),
        (f"echo '0' > {REWARD}.txt", 0.0),
        (f'echo \'{{"reward": 0.5, "style": 1}}\' > {REWARD}.json', 0.5),
        (f"echo '{{\"only\": 0.75}}' > {REWARD}.json", 0.75),
        (f"echo 1.0 > {REWARD}.json; echo 1 > {REWARD}.txt", 1.0),
        (f"test $(cat /tests/data.txt) = 42 && cat solution.py > {REWARD}.txt", 0.125),
    ],
)
async def test_the_scripts_number_is_the_score(
    pool: SandboxPool, script: str, reward: float
) -> None:
    verdict = await grade(pool, script_task(script), "0.125\n")
    assert (verdict.status, verdict.trust) == ("graded", "hardened")
    # the check is required, so anything but a full pass pays nothing
    assert verdict.checks[0].score == reward
    assert verdict.passed is (reward == 1.0)


@pytest.mark.parametrize(
    "script",
    [
        "true",
        f"touch {REWARD}.txt",
        f"echo nan > {REWARD}.txt",
        f"echo inf > {REWARD}.txt",
        f"echo 1e9 > {REWARD}.txt",
        f"echo -1 > {REWARD}.txt",
        f"echo passed > {REWARD}.txt",
        f"echo 1 > {REWARD}.txt; echo 0 > {REWARD}.json",
        f'echo \'{{"a": 1, "b": 0}}\' > {REWARD}.json',
        f"echo true > {REWARD}.json",
        f"ln -s /tests/data.txt {REWARD}.txt",
        f"mkfifo {REWARD}.txt",
        f"head -c 100000 /dev/zero > {REWARD}.txt",
        "exit 127",
    ],
)
async def test_no_sound_reward_is_no_grade_and_never_a_zero(pool: SandboxPool, script: str) -> None:
    verdict = await grade(pool, script_task(script), "")
    assert (verdict.status, verdict.fault, verdict.reward) == ("ungraded", "environment", None)
    assert "test.sh" in verdict.reason


@pytest.mark.parametrize("script", ["sleep 60", "kill -9 $$"])
async def test_ending_the_script_by_force_is_no_way_out_of_a_zero(
    pool: SandboxPool, script: str
) -> None:
    verdict = await grade(pool, script_task(script, timeout_s=1.0), "")
    assert (verdict.status, verdict.reward) == ("graded", 0.0)


async def test_the_reference_script_is_run_and_its_changes_are_graded(pool: SandboxPool) -> None:
    task = script_task(f"test -f made/new && test ! -e old && echo 1 > {REWARD}.txt")
    solution = {"solve.sh": b"mkdir made; cp /solution/data made/new; rm old", "data": b"x"}
    whole = Task(task.spec, {"old": b"1", "kept": b"2"}, task.tests, solution)
    submission = await reference_submission(pool, whole)
    assert submission.files == {"made/new": b"x", "old": None}
    verdict = await FreshBoxGrader(pool, SystemClock()).grade(whole, submission)
    assert verdict.reward == 1.0
    broken = Task(task.spec, solution={"solve.sh": b"echo no >&2; exit 3"})
    with pytest.raises(TaskError, match="3: no"):
        await reference_submission(pool, broken)
