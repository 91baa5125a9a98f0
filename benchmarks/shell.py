"""What one command costs in a shell that stays alive in a box.

The box has the full profile (512 MB memory, 256 MB disk, 64 pids, no network, seccomp, a uid
of its own). Beside it, in the same run and by turns: a session of SWE-ReX's local runtime,
which isolates nothing, and a fresh ``bash -c`` without any sandbox. SWE-ReX is installed from
the package index into a virtual environment that goes afterwards, or is found in the one whose
python TRIALYARD_BENCH_SWEREX names.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._outcome import at_most, machine
from benchmarks.sandbox import sample
from trialyard.core.process import Shell
from trialyard.core.sandbox import Limits
from trialyard.images.host import HOST, host_image
from trialyard.sandboxes.pool import NamespacePool

TEXTS = {"builtin (echo)": "echo hi", "program (/bin/true)": "/bin/true"}
PEER_N = 30
INSTALL_TIMEOUT_S, PEER_TIMEOUT_S = 300.0, 120.0
PEER = """
import asyncio, json, logging, statistics, sys, time
logging.disable(logging.CRITICAL)
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

async def main(texts, count):
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    found = {}
    for name, text in texts.items():
        walls_ms = []
        for _ in range(count):
            started_s = time.perf_counter()
            answer = await runtime.run_in_session(BashAction(command=text, timeout=30))
            walls_ms.append((time.perf_counter() - started_s) * 1e3)
            assert answer.exit_code == 0, answer
        p99_ms = statistics.quantiles(walls_ms, n=100)[98]
        found[name] = {
            "p50_ms": round(statistics.median(walls_ms), 3), "p99_ms": round(p99_ms, 3)
        }
    await runtime.close()
    print(json.dumps(found))

asyncio.run(main(json.loads(sys.argv[1]), int(sys.argv[2])))
"""


def run() -> dict[str, Any]:
    """One object as every benchmark prints it."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, Any]:
    pool = NamespacePool({HOST: host_image()}, max_boxes=1, warm_per_kind=0)
    try:
        async with pool.acquire(image=HOST, limits=Limits(), owner="bench") as box:
            opening = await sample(lambda: _open_and_close(box))
            shell = await box.shell()
            before = await _ours(shell)
            peer = await asyncio.to_thread(_peer)
            after = await _ours(shell)
            bare = await sample(_bare)
    finally:
        await pool.close()
    slower = {name: max(before[name], after[name], key=lambda it: it["p50_ms"]) for name in TEXTS}
    targets = [at_most(f"{name}: p50 in ms", slower[name]["p50_ms"], 2.0) for name in TEXTS]
    return {
        "benchmark": "shell",
        "machine": machine(),
        "figures": {
            **{f"{name}, before the peer": before[name] for name in TEXTS},
            **{f"{name}, after the peer": after[name] for name in TEXTS},
            "open a shell and close it": opening,
        },
        "against": {
            **{f"SWE-ReX local runtime: {name}": value for name, value in peer.items()},
            "a fresh bash -c, no sandbox": bare,
        },
        "targets": targets,
    }


async def _open_and_close(box: Any) -> None:
    shell = await box.shell()
    await shell.close()


async def _ours(shell: Shell) -> dict[str, dict[str, float]]:
    return {
        name: await sample(lambda text=text: _once(shell, text)) for name, text in TEXTS.items()
    }


async def _once(shell: Shell, text: str) -> None:
    result = await shell.run(text)
    assert result.ok, result


async def _bare() -> None:
    subprocess.run(["bash", "-c", "echo hi"], check=True, capture_output=True)  # noqa: ASYNC221 - the peer


def _peer() -> dict[str, Any]:
    """SWE-ReX's figures, or why there are none."""
    try:
        with tempfile.TemporaryDirectory() as directory:
            python = os.environ.get("TRIALYARD_BENCH_SWEREX") or _installed(directory)
            ran = _run([python, "-c", PEER, json.dumps(TEXTS), str(PEER_N)], PEER_TIMEOUT_S)
            found: dict[str, Any] = json.loads(ran.splitlines()[-1])
            return found
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return {"not measured": said.strip().splitlines()[-1] if said.strip() else repr(error)}


def _installed(directory: str) -> str:
    python = str(Path(directory, "bin", "python"))
    _run([sys.executable, "-m", "venv", directory], INSTALL_TIMEOUT_S)
    _run([python, "-m", "pip", "install", "-q", "swe-rex"], INSTALL_TIMEOUT_S)
    return python


def _run(argv: list[str], timeout_s: float) -> str:
    return subprocess.run(
        argv, check=True, capture_output=True, text=True, timeout=timeout_s
    ).stdout
