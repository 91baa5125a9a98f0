"""Faults that users of comparable systems reported, each with its right answer (tests/cases)."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.boxes import BACKENDS, a_box, namespace_pool, processes_of_uid
from tests.timing import scaled
from trialyard.core.sandbox import ExecResult, ExecStatus, Limits
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool

CASES = Path(__file__).parents[1] / "cases"


def case(name: str) -> tuple[Path, Any]:
    [directory] = CASES.glob(f"{name}_*")
    return directory, json.loads((directory / "expected.json").read_text())


@pytest.fixture(params=BACKENDS)
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[NamespacePool]:
    made = namespace_pool(backend=request.param)
    yield made
    await made.close()


@pytest.fixture
async def box(pool: NamespacePool) -> AsyncIterator[NamespaceSandbox]:
    async with a_box(pool) as made:
        yield made


async def run_program(
    box: NamespaceSandbox, directory: Path, name: str = "prog.py", **options: Any
) -> ExecResult:
    await box.write(name, (directory / name).read_bytes())
    return await box.run(
        ["python", name], timeout_s=options.pop("timeout_s", scaled(10.0)), **options
    )


async def test_01_a_detached_grandchild_does_not_outlive_the_timeout(box: NamespaceSandbox) -> None:
    directory, expected = case("01")
    before = processes_of_uid(box.host_uid)
    started_s = time.monotonic()
    timeout_s = scaled(2.0, at_most_s=8.0)  # after ten seconds the grandchild is done
    result = await run_program(box, directory, timeout_s=timeout_s)
    assert time.monotonic() - started_s < timeout_s - 2.0 + scaled(expected["max_return_s"])
    assert (result.status.value, result.exit_code) == (expected["status"], None)
    assert result.stdout.decode() == expected["stdout"]
    size = (await box.stat("beat.txt")).size_bytes
    assert processes_of_uid(box.host_uid) == before
    assert (await box.run(["true"])).ok
    await asyncio.sleep(1.5)
    assert (await box.stat("beat.txt")).size_bytes == size
    assert "/work/late.txt" not in [entry.path for entry in await box.list(".")]


async def test_03_both_pipes_are_drained_at_once(pool: NamespacePool) -> None:
    directory, expected = case("03")
    limits = Limits(output_bytes=4 << 20)
    async with pool.acquire(image="host", limits=limits, owner="test") as box:
        assert isinstance(box, NamespaceSandbox)
        started_s = time.monotonic()
        result = await run_program(box, directory)
    assert time.monotonic() - started_s < scaled(expected["max_s"])
    assert (result.status.value, result.exit_code) == (expected["status"], expected["exit_code"])
    for name, data in (("stdout", result.stdout), ("stderr", result.stderr)):
        assert len(data) == expected[f"{name}_len"]
        assert hashlib.sha256(data).hexdigest() == expected[f"{name}_sha256"]


async def test_04_bytes_are_kept_and_decoded_once(box: NamespaceSandbox) -> None:
    directory, expected = case("04")
    result = await run_program(box, directory)
    assert (result.status.value, result.exit_code) == (expected["status"], expected["exit_code"])
    assert result.stdout.hex() == expected["stdout_hex"]
    line = json.dumps(result.to_json())
    assert "\n" not in line
    assert json.loads(line)["stdout"] == expected["stdout_text"]


@pytest.mark.parametrize("through_shell", [False, True])
async def test_07_a_signal_is_never_guessed_from_an_exit_code(
    box: NamespaceSandbox, through_shell: bool
) -> None:
    directory, expected = case("07")
    for name, right in expected.items():
        await box.write(name, (directory / name).read_bytes())
        argv = ["sh", "-c", f"python {name}; exit $?"] if through_shell else ["python", name]
        result = await box.run(argv, timeout_s=scaled(5))
        code, signal = right["exit_code"], right["signal"]
        if through_shell and signal is not None:
            code, signal = 128 + signal, None
        assert (result.exit_code, result.signal) == (code, signal), name
        assert result.status is (ExecStatus.EXITED if signal is None else ExecStatus.SIGNALED)
        if "stdout" in right:
            assert result.stdout.decode() == right["stdout"], name
        if "stderr" in right:
            assert result.stderr.decode() == right["stderr"], name


async def test_08_no_stdin_is_end_of_file_at_once(box: NamespaceSandbox) -> None:
    directory, expected = case("08")
    started_s = time.monotonic()
    result = await run_program(box, directory)
    assert time.monotonic() - started_s < scaled(expected["no_stdin"]["max_s"])
    assert (result.exit_code, result.stdout.decode()) == (0, expected["no_stdin"]["stdout"])
    lines = (directory / "cmds.txt").read_text().splitlines()
    for name, line in zip(("cat", "grep", "input"), lines, strict=True):
        result = await box.run(["sh", "-c", line], timeout_s=scaled(2))
        assert result.exit_code == expected[name]["exit_code"]
        assert result.stdout.decode() == expected[name].get("stdout", "")
        assert result.stderr.decode().endswith(expected[name].get("stderr_suffix", ""))
    result = await run_program(box, directory, stdin=b"abc")
    assert (result.exit_code, result.stdout.decode()) == (0, expected["abc"]["stdout"])


@pytest.mark.parametrize(
    ("variant", "env"), [("plain", {}), ("unbuffered", {"PYTHONUNBUFFERED": "1"})]
)
async def test_10_output_before_a_timeout_is_kept(
    box: NamespaceSandbox, variant: str, env: dict[str, str]
) -> None:
    directory, expected = case("10")
    result = await run_program(box, directory, timeout_s=scaled(2.0, at_most_s=30.0), env=env)
    assert result.status.value == expected[variant]["status"]
    assert result.stdout.decode() == expected[variant]["stdout"]
    assert result.stderr.decode() == expected[variant]["stderr"]


async def test_14_secrets_of_the_host_are_not_reachable(
    monkeypatch: pytest.MonkeyPatch, pool: NamespacePool
) -> None:
    monkeypatch.setenv("ZZ_NEW_PROVIDER_KEY", "canary-5d1c")
    directory, expected = case("14")
    async with a_box(pool) as box:
        result = await run_program(box, directory, env={"TASK_MODE": "dev"})
    assert result.exit_code == expected["exit_code"]
    assert result.stdout.decode() == expected["stdout"]
