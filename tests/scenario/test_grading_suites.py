"""Tests checks in real boxes: exact ids, every outcome, one hanging test."""

import json
from pathlib import Path

import pytest

from tests.scenario.grading import grade, statuses, suite_task
from trialyard.core.sandbox import SandboxPool

CASES = Path(__file__).parents[1] / "cases"
SOLUTION = "def add(a, b): return a + b\n"


async def test_case_19_odd_parametrized_ids_come_back_exactly(pool: SandboxPool) -> None:
    case = CASES / "19_odd_parametrized_test_ids"
    expected = json.loads((case / "expected.json").read_text())["results"]
    suite = suite_task({"test_ids.py": (case / "test_ids.py").read_text()}, *expected)
    verdict = await grade(pool, suite, SOLUTION)
    assert {test.id: test.status for test in verdict.tests} == expected
    assert verdict.reward == pytest.approx(24 / 26)


async def test_case_21_every_outcome_is_told_apart(pool: SandboxPool) -> None:
    case = CASES / "21_every_pytest_outcome"
    expected = json.loads((case / "expected.json").read_text())["outcome"]
    tests = {"test_outcomes.py": (case / "test_outcomes.py").read_text()}
    verdict = await grade(pool, suite_task(tests), SOLUTION)
    assert {test.id: test.status for test in verdict.tests} == expected
    paid = {"test_outcomes.py::test_pass", "test_outcomes.py::test_xpass"}
    assert verdict.reward == pytest.approx(len(paid) / len(expected))
    assert verdict.tampering == ()


async def test_case_29_one_hanging_test_costs_only_itself(pool: SandboxPool) -> None:
    case = CASES / "29_one_hanging_test_among_five"
    tests = {"test_slow.py": (case / "test_slow.py").read_text()}
    ids = [f"test_slow.py::test_{i}" for i in range(1, 6)]
    verdict = await grade(
        pool, suite_task(tests, *ids, test_timeout_s=2.0, timeout_s=30.0), SOLUTION
    )
    assert statuses(verdict) == ["passed", "timeout", "passed", "failed", "passed"]
    assert (verdict.reward, verdict.tampering) == (0.6, ())
    verdict = await grade(
        pool, suite_task(tests, *ids, test_timeout_s=100.0, timeout_s=5.0), SOLUTION
    )
    assert statuses(verdict) == ["passed", "timeout", "not_run", "not_run", "not_run"]
    assert verdict.status == "graded"


async def test_a_test_that_ends_the_process_costs_only_itself(pool: SandboxPool) -> None:
    tests = {
        "test_a.py": "import os\ndef test_1(): pass\n"
        "def test_2(): os._exit(0)\ndef test_3(): pass\n"
    }
    verdict = await grade(pool, suite_task(tests), SOLUTION)
    assert statuses(verdict) == ["passed", "error", "passed"]
    assert verdict.tampering == ()


async def test_fixtures_helpers_and_conftest_of_the_tests_work(pool: SandboxPool) -> None:
    tests = {
        "conftest.py": "import pytest\n@pytest.fixture\ndef two(): return 2\n",
        "helper.py": "THREE = 3\n",
        "sub/test_b.py": "from helper import THREE\nfrom solution import add\n"
        "def test_b(two, tmp_path, monkeypatch, capsys):\n"
        "    print('hello')\n    monkeypatch.setattr('time.time', lambda: 0)\n"
        "    (tmp_path / 'x').write_text('y')\n"
        "    assert capsys.readouterr().out == 'hello\\n'\n    assert add(two, 1) == THREE\n",
    }
    suite = suite_task(tests, "sub/test_b.py::test_b")
    verdict = await grade(pool, suite, SOLUTION)
    assert (verdict.reward, verdict.tampering) == (1.0, ()), verdict.tests


async def test_a_suite_that_cannot_import_the_answer_says_why(pool: SandboxPool) -> None:
    tests = {"test_a.py": "from solution import gone\ndef test_1(): pass\n"}
    verdict = await grade(pool, suite_task(tests, "test_a.py::test_1"), SOLUTION)
    assert (verdict.reward, statuses(verdict)) == (0.0, ["not_run"])
    assert "cannot import name 'gone'" in verdict.tests[0].message
