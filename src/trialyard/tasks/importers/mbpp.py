"""MBPP (Mostly Basic Python Problems), one JSON object a line, as tasks.

Every assert becomes one case of a values check: the candidate's process computes the
left side, the right side stays with the grader (see `asserts`). The first test is
shown and can be run by the agent; all of them count. Splits are MBPP's own: 601-974
train, 11-510 test, the rest valid.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trialyard.core.cases import dump_cases
from trialyard.core.errors import NotFoundError, TaskError
from trialyard.core.task import AgentSpec, Split, Task, TaskSpec, ValuesCheck
from trialyard.tasks.importers.asserts import case_of, entry_function
from trialyard.tasks.importers.result import ImportProblem, ImportResult, write_tasks

ANSWER_FILE = "solution.py"
CASE_TIMEOUT_S = 10.0
SLOW_CASE_TIMEOUT_S = {123: 120.0}
"""Problems whose reference solution needs longer, by task_id."""
MAX_LINE_CHARS = 1 << 20


def import_mbpp(source: Path) -> Iterator[Task | ImportProblem]:
    """Tasks of a JSONL file in its order; a broken record is a problem with its line."""
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise NotFoundError(f"{source}: {error.strerror}; give MBPP's JSONL file") from error
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = _task(_record(line))
            if task.id in seen:
                raise TaskError(f"task_id {task.id} appears twice")
            seen.add(task.id)
        except TaskError as error:
            yield ImportProblem(source=str(source), line=number, message=str(error))
        else:
            yield task


def import_to_directory(source: Path, dest: Path) -> ImportResult:
    """Write every task below `dest`; doing it again changes nothing."""
    return write_tasks(import_mbpp(source), dest)


def _record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line) if len(line) <= MAX_LINE_CHARS else None
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise TaskError("not a JSON object of at most one million characters")
    wanted = {"task_id": int, "text": str, "code": str, "test_list": list}
    for key, kind in wanted.items():
        if type(record.get(key)) is not kind:
            raise TaskError(f"field {key!r} is missing or no {kind.__name__}")
    tests = record["test_list"]
    if not tests or not all(isinstance(test, str) for test in tests):
        raise TaskError("field 'test_list' must be a non-empty list of strings")
    return record


def _task(record: dict[str, Any]) -> Task:
    number: int = record["task_id"]
    tests: list[str] = record["test_list"]
    code = record["code"].replace("\r\n", "\n")
    setup = str(record.get("test_setup_code") or "").replace("\r\n", "\n")
    function = entry_function(tests, code)
    cases = [case_of(test, function, setup=setup) for test in tests]
    timeout_s = SLOW_CASE_TIMEOUT_S.get(number, CASE_TIMEOUT_S)

    def check(name: str, *, visible: bool) -> ValuesCheck:
        return ValuesCheck(
            name=name,
            file=ANSWER_FILE,
            function=function,
            cases=f"{name}.json",
            timeout_s=timeout_s,
            visible=visible,
        )

    spec = TaskSpec(
        id=f"mbpp/{number}",
        instruction=_instruction(record["text"], function, tests[0], setup),
        split=_split(number),
        domain="programming",
        language="python",
        tags=("mbpp",),
        checks=(check("visible", visible=True), check("hidden", visible=False)),
        agent=AgentSpec(tool="answer", answer_file=ANSWER_FILE),
        grader_timeout_s=max(120.0, (len(tests) + 1) * timeout_s),
        metadata={"source": "MBPP", "license": "CC BY 4.0", "task_id": number},
    )
    return Task(
        spec=spec,
        tests={"visible.json": dump_cases(cases[:1]), "hidden.json": dump_cases(cases)},
        solution={ANSWER_FILE: code.encode()},
    )


def _instruction(text: str, function: str, test: str, setup: str) -> str:
    parts = [
        text.strip(),
        f"Write a Python file `{ANSWER_FILE}` that defines `{function}`.",
        f"It must satisfy this test:\n\n{test.strip()}",
    ]
    if setup:
        parts.append(f"The test is run after this code:\n\n{setup.strip()}")
    return "\n\n".join(parts) + "\n"


def _split(number: int) -> Split:
    if number >= 601:
        return "train"
    return "test" if 11 <= number <= 510 else "valid"
