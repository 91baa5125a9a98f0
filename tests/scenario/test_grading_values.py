"""Values checks in real boxes: each case costs itself, whatever the candidate does."""

import pytest

from tests.scenario.grading import grade, statuses, task_of, values_task
from trialyard.core.cases import Case, dump_cases
from trialyard.core.sandbox import Limits, SandboxPool
from trialyard.core.task import ValuesCheck
from trialyard.graders.values import run_cases

COUNT = [Case((i,), expected=i) for i in range(4)]
BODY = "def f(x):\n    if x == 1:\n        {}\n    return x\n"

TROUBLES = {
    "raises": ("raise ValueError('no')", "error", "ValueError: no (line 3)"),
    "exits": ("import sys; sys.exit(0)", "error", "SystemExit"),
    "leaves at once": ("import os; os._exit(0)", "error", "Exited"),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", "error", "Killed"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "error", "Killed"),
    "recurses": ("return f(x)", "error", "RecursionError"),
    "hangs": ("while True: pass", "timeout", "Timeout"),
    "sleeps": ("import time; time.sleep(60)", "timeout", "Timeout"),
    "swallows the limit": (
        "\n        while True:\n            try:\n                while True: pass\n"
        "            except BaseException: pass",
        "timeout",
        "Timeout",
    ),
    "gives an object": ("return object()", "error", "NotPlain"),
    "gives a generator": ("return (i for i in [1])", "error", "NotPlain"),
    "gives itself inside": ("a = []; a.append(a); return a", "error", "TooDeep"),
    "gives too much": ("return 'x' * 10_000_000", "error", "TooLarge"),
    "gives a huge integer": ("return 1 << 10_000_000", "error", "TooLarge"),
    "gives a broken repr": (
        "raise type('E', (Exception,), {'__str__': lambda s: 1/0})()",
        "error",
        "E",
    ),
    "forks": ("import os; os.fork()", "passed", ""),
    "gives a fraction": ("return 1.0", "failed", ""),
    "gives a truth": ("return True", "failed", ""),
}


@pytest.mark.parametrize("name", TROUBLES)
async def test_trouble_in_one_case_costs_that_case(pool: SandboxPool, name: str) -> None:
    code, status, message = TROUBLES[name]
    timeout_s = 1.0 if status == "timeout" else 10.0
    verdict = await grade(pool, values_task(COUNT, timeout_s=timeout_s), BODY.format(code))
    assert statuses(verdict) == ["passed", status, "passed", "passed"]
    assert verdict.tests[1].message.startswith(message)
    assert verdict.tampering == ()
    assert verdict.reward == (1.0 if status == "passed" else 0.75)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "NameError: solution.py defines no 'f'"),
        ("def f(:", "SyntaxError: invalid syntax (line 1)"),
        ("\n\n1/0", "ZeroDivisionError: division by zero (line 3)"),
        ("raise SystemExit(0)", "SystemExit: 0 (line 1)"),
        ("import os; os._exit(0)", "Exited"),
        ("f = 3", "TypeError: 'int' object is not callable"),
        ("while True: pass", "Timeout"),
        ("x = '\0'", "SyntaxError"),
    ],
)
async def test_what_cannot_be_imported_gets_nothing_and_the_reason(
    pool: SandboxPool, answer: str, message: str
) -> None:
    verdict = await grade(pool, values_task(COUNT, timeout_s=2.0), answer)
    assert (verdict.status, verdict.reward, verdict.fault) == ("graded", 0.0, "none")
    assert {test.message.split(" (")[0] for test in verdict.tests} == {
        verdict.tests[0].message.split(" (")[0]
    }
    assert verdict.tests[0].message.startswith(message)


async def test_a_missing_file_gets_nothing(pool: SandboxPool) -> None:
    verdict = await grade(pool, values_task(COUNT), {})
    assert (verdict.reward, verdict.tests[0].message[:17]) == (0.0, "FileNotFoundError")


async def test_running_out_of_memory_is_the_candidates_own_doing(pool: SandboxPool) -> None:
    task = values_task(COUNT, limits=Limits(memory_bytes=64 << 20))
    verdict = await grade(pool, task, BODY.format("return len(bytearray(1 << 40) or b'')"))
    assert (verdict.status, statuses(verdict)[1]) == ("graded", "error")
    hog = BODY.format("a = [bytearray(1 << 20) for _ in range(500)]")
    verdict = await grade(pool, task, hog)
    assert verdict.status == "graded"
    assert statuses(verdict)[:2] == ["passed", "error"]
    assert verdict.tests[1].message.startswith("OutOfMemory")
    assert verdict.reward in (0.25, 0.75)  # whether the box outlives it is the kernel's choice


async def test_plain_values_of_every_type_cross_unchanged(pool: SandboxPool) -> None:
    values = [
        None, True, -5, 1 << 70, -(1 << 60), 0.1, float("inf"), -0.0, 2j,
        "é\u2028\"\\\n\ud800😀", b"\x00\xff", [1, [2, (3,)]], (), {1, 2}, frozenset({"a"}),
        {"k": {1: [None]}}, {(1, 2): 3},
    ]  # fmt: skip
    cases = [Case((value,), expected=value) for value in values]
    verdict = await grade(pool, values_task(cases), "def f(x): return x\n")
    assert statuses(verdict) == ["passed"] * len(values), verdict.tests


async def test_keywords_expressions_set_up_and_sources(pool: SandboxPool) -> None:
    answer = "class N:\n    def __init__(self, v): self.v = v\ndef f(x, k=0): return x.v + k\n"
    cases = [
        Case(expression="f(n, k=1)", setup="n = N(2)", expected=3),
        Case(expression="f(N(5))", expected_source="__import__('math').factorial(3) - 1"),
    ]
    verdict = await grade(pool, values_task(cases), answer)
    assert statuses(verdict) == ["passed", "passed"]
    keywords = values_task([Case((2,), {"k": 5}, 7)])
    assert (await grade(pool, keywords, "def f(x, *, k): return x + k\n")).reward == 1.0


async def test_hashes_and_set_order_follow_the_seed(pool: SandboxPool) -> None:
    task = values_task([Case(), Case()])
    (check,) = task.spec.checks
    assert isinstance(check, ValuesCheck)
    answer = b"def f(): return hash('a'), list({'a', 'b', 'c', 'd', 'e'})\n"
    gots = []
    for seed in (1, 1, 2):
        async with pool.acquire(image="host", limits=Limits(), owner="test") as sandbox:
            await sandbox.write("solution.py", answer)
            outcomes = await run_cases(sandbox, check, [Case()], seed=seed)
        gots.append(outcomes[0].got)
    assert gots[0] == gots[1]
    assert gots[0] != gots[2]


async def test_the_whole_grading_has_a_time_limit_of_its_own(pool: SandboxPool) -> None:
    task = values_task(
        [Case((i,), expected=i) for i in range(50)], timeout_s=1.0, grader_timeout_s=3.0
    )
    verdict = await grade(pool, task, "def f(x):\n    while True: pass\n")
    assert verdict.status == "graded"
    assert verdict.reward == 0.0
    assert "not_run" in statuses(verdict)
    assert verdict.usage["wall_s"] < 10


async def test_crashing_again_and_again_is_bounded(pool: SandboxPool) -> None:
    task = values_task([Case((i,), expected=i) for i in range(40)])
    verdict = await grade(pool, task, "import os\ndef f(x): os._exit(1)\n")
    assert verdict.usage["commands"] <= 20
    assert set(statuses(verdict)) == {"error", "not_run"}


async def test_a_verdict_says_by_what_it_was_made(pool: SandboxPool) -> None:
    task = values_task(COUNT)
    verdict = await grade(pool, task, "def f(x): return x\n", seed=5)
    assert (verdict.trust, verdict.passed, verdict.seed) == ("separated", True, 5)
    assert verdict.task_hash == task.hash
    assert verdict.image_digest == pool.image_digest("host")
    assert verdict.grader_version
    assert verdict.usage["commands"] == 1
    assert verdict.usage["wall_s"] > 0


async def test_a_file_in_a_package_is_imported_as_part_of_it(pool: SandboxPool) -> None:
    check = ValuesCheck(name="v", file="src/pkg/mod.py", function="f", cases="c.json")
    task = task_of((check,), {"c.json": dump_cases([Case(expected=("pkg.mod", 7, 8))])})
    answer = {
        "src/pkg/__init__.py": "",
        "src/pkg/mod.py": "from .other import x\nimport top\ndef f(): return __name__, x, top.y\n",
        "src/pkg/other.py": "x = 7\n",
        "top.py": "y = 8\n",
    }
    assert (await grade(pool, task, answer)).reward == 1.0


async def test_results_that_exceed_the_output_limit_together_are_asked_for_again(
    pool: SandboxPool,
) -> None:
    task = values_task(
        [Case((i,), expected=str(i) * 30_000) for i in range(5)],
        limits=Limits(output_bytes=64_000),
    )
    verdict = await grade(pool, task, "def f(x): return str(x) * 30_000\n")
    assert statuses(verdict) == ["passed"] * 5
    assert verdict.tampering == ()
