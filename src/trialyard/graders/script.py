"""Script checks: Harbor's ``tests/test.sh`` in a fresh box.

What the box must offer: ``bash``, and writable ``/tests`` and ``/logs/verifier``. The
script leaves one number in [0, 1] in reward.txt, or in reward.json (a number, or an
object with ``reward`` or with a single entry). Its exit code does not count. No
reward, or none that is sound, is the environment's fault and never a zero; running
out of time or memory, or being killed inside the box, is the candidate's doing.
"""

import json
import math
from typing import Any

from trialyard.core.errors import FileAccessError, GraderError
from trialyard.core.sandbox import ExecResult, ExecStatus, Sandbox
from trialyard.core.task import ScriptCheck
from trialyard.graders.finding import Finding, GradingRun
from trialyard.graders.layers import run_environment

TESTS_DIRECTORY = "/tests"
LOGS_DIRECTORY = "/logs/verifier"
MAX_REWARD_BYTES = 65_536
_TOLERANCE = 1e-9


async def grade_script(sandbox: Sandbox, run: GradingRun, check: ScriptCheck) -> Finding:
    """Score is the script's reward; it passed when that is 1."""
    try:
        await sandbox.upload(run.task.tests, directory=TESTS_DIRECTORY)
        await sandbox.write(f"{LOGS_DIRECTORY}/.ready", b"")
    except FileAccessError as error:
        raise GraderError(
            f"check {check.name!r}: the image has no writable {TESTS_DIRECTORY} and "
            f"{LOGS_DIRECTORY}, which Harbor's scripts need: {error}"
        ) from error
    result = await sandbox.run(
        ["bash", f"{TESTS_DIRECTORY}/{check.script}"],
        env=run_environment(run.seed),
        cwd=sandbox.workdir,
        timeout_s=min(check.timeout_s, run.left_s()) or 1.0,
    )
    usages = (result.usage,)
    if result.status is not ExecStatus.EXITED:
        evidence = f"the script ended with status {result.status.value}"
        return Finding(0.0, False, "hardened", evidence, usages=usages)
    try:
        score = await _read_reward(sandbox)
    except GraderError as error:
        evidence = f"{error}; {_tail(result)}"
        return Finding(None, False, "hardened", evidence, usages=usages)
    passed = score >= 1.0 - _TOLERANCE
    return Finding(score, passed, "hardened", f"reward {score:g}", usages=usages)


async def _read_reward(sandbox: Sandbox) -> float:
    """The reward that the files agree on. Raises `GraderError`."""
    found: dict[str, float] = {}
    for name, parse in (("reward.txt", _parse_text), ("reward.json", _parse_json)):
        try:
            data = await sandbox.read(f"{LOGS_DIRECTORY}/{name}", max_bytes=MAX_REWARD_BYTES)
        except FileAccessError:
            continue
        found[name] = parse(data)
    if not found:
        raise GraderError(f"the script wrote no reward to {LOGS_DIRECTORY}")
    if max(found.values()) - min(found.values()) > _TOLERANCE:
        raise GraderError(f"reward.txt and reward.json differ: {found}")
    return next(iter(found.values()))


def _parse_text(data: bytes) -> float:
    try:
        return _sound(float(data.decode("ascii").strip()))
    except ValueError as error:
        raise GraderError(f"reward.txt holds no number: {data[:40]!r}") from error


def _parse_json(data: bytes) -> float:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise GraderError(f"reward.json is not JSON: {data[:40]!r}") from error
    if isinstance(value, dict):
        if "reward" not in value and len(value) != 1:
            raise GraderError("reward.json names several rewards and none is called 'reward'")
        value = value["reward"] if "reward" in value else next(iter(value.values()))
    return _sound(value)


def _sound(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise GraderError(f"the reward {str(value)[:40]!r} is not a number in [0, 1]")
    return float(value)


def _tail(result: ExecResult) -> str:
    text = (result.stderr or result.stdout)[-200:].decode("utf-8", "replace").strip()
    return f"exit code {result.exit_code}; its last output: {text!r}"
