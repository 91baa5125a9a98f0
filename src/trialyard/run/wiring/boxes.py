"""Pool, grader and tools: what runs without a trainer and without a store."""

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as metadata_version
from pathlib import Path
from typing import Literal

from trialyard.core.built_directory import built_directory
from trialyard.core.clock import SystemClock
from trialyard.core.errors import NotFoundError
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import Task
from trialyard.graders.cache import CachedGrader
from trialyard.graders.fresh_box import FreshBoxGrader
from trialyard.graders.layers import (
    GRADER,
    PYTEST,
    PYTHON,
    RUNNER_SOURCE,
    build_pytest_layer,
    compile_runners,
)
from trialyard.graders.values_check import run_visible_check
from trialyard.images.host import HOST, host_image
from trialyard.rollout.answer import AnswerTool
from trialyard.rollout.shell import ShellTool
from trialyard.rollout.tools import Tool
from trialyard.sandboxes.backend import Backend, BubblewrapBackend
from trialyard.sandboxes.box_log import BoxLog
from trialyard.sandboxes.host import check_host
from trialyard.sandboxes.oci import OciBackend
from trialyard.sandboxes.pool import NamespacePool
from trialyard.sandboxes.pool_metrics import PoolMetrics
from trialyard.sandboxes.zygote import WarmImport

BackendName = Literal["namespace", "oci"]
CACHE_DIRECTORY = Path("/var/cache/trialyard")
MEMORY_OVERCOMMIT = 4
"""Boxes may be promised this many times the machine's memory together: few use all of theirs."""
METRICS_FILE = "metrics.prom"
_PYTEST_PLUGINS = [
    "_argcomplete",
    "faulthandler",
    "helpconfig",
    "junitxml",
    "pastebin",
    "setuponly",
    "setupplan",
    "skipping",
    "threadexception",
    "tracemalloc",
    "unittest",
    "unraisableexception",
    "warnings",
]
"""Those of pytest's own that importing it does not import yet, but every run does."""
WARM_IMPORTS = (
    WarmImport(trigger="values_runner", modules=("values_runner",), directory=GRADER),
    WarmImport(
        trigger="pytest_runner.py",
        modules=("pytest", *map("_pytest.{}".format, _PYTEST_PLUGINS), "pdb"),
        directory=PYTEST,
    ),
)


def layers() -> dict[str, Path]:
    """Read-only directories that every box has: an interpreter and the grader's runner."""
    compile_runners()
    mounts = {str(Path(PYTHON).parents[1]): Path(sys.base_prefix), GRADER: RUNNER_SOURCE}
    with contextlib.suppress(
        NotFoundError, PackageNotFoundError
    ):  # without pytest, tests checks say what is missing
        mounts[PYTEST] = _pytest_layer()
    return mounts


def _pytest_layer() -> Path:
    """A copy of pytest for boxes, made once for each version and shared by processes."""
    versions = "-".join([*map(str, sys.version_info[:2]), metadata_version("pytest")])
    return built_directory(CACHE_DIRECTORY / f"pytest-{versions}", build_pytest_layer)


def open_backend(
    name: BackendName, *, runtime: str = "runc", allow_vulnerable_runtime: bool = False
) -> Backend:
    """What sets boxes up. Raises `SandboxUnavailable`."""
    if name == "oci":
        return OciBackend(runtime, allow_vulnerable_runtime=allow_vulnerable_runtime)
    return BubblewrapBackend()


@asynccontextmanager
async def open_pool(
    *,
    max_boxes: int,
    warm: int,
    backend: BackendName = "namespace",
    runtime: str = "runc",
    allow_vulnerable_runtime: bool = False,
    log_directory: Path | None = None,
) -> AsyncIterator[SandboxPool]:
    """A pool of boxes on this machine; nothing of it is left afterwards.

    With `log_directory` every command is logged there, and the pool's metrics at the end.

    `runtime` is the OCI runtime of the backend "oci", by name or path; one with known escapes
    is refused unless `allow_vulnerable_runtime`. Raises `SandboxUnavailable` with the cure.
    """
    check_host()
    chosen = open_backend(
        backend, runtime=runtime, allow_vulnerable_runtime=allow_vulnerable_runtime
    )
    mounts = layers()
    pool = NamespacePool(
        {HOST: host_image()},
        backend=chosen,
        layers=mounts,
        max_boxes=max_boxes,
        warm_per_kind=warm,
        warm_imports=[each for each in WARM_IMPORTS if each.directory in mounts],
        max_memory_bytes=MEMORY_OVERCOMMIT * host_memory_bytes(),
    )
    with _logged(pool, log_directory):
        try:
            yield pool
        finally:
            await pool.close()


def host_memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextlib.contextmanager
def _logged(pool: NamespacePool, directory: Path | None) -> Iterator[None]:
    if directory is None:
        yield
        return
    log, metrics = BoxLog(directory), PoolMetrics(pool)
    pool.observe(log.on_event)
    try:
        yield
    finally:
        log.close()
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / METRICS_FILE).write_text(metrics.text())


def open_grader(pool: SandboxPool, *, cached: bool = False) -> FreshBoxGrader | CachedGrader:
    """The grader over a pool; `cached` grades equal answers once."""
    grader = FreshBoxGrader(pool, SystemClock())
    if not cached:
        return grader
    return CachedGrader(grader, image_digest=pool.image_digest, version=grader.version)


def tool_for(task: Task) -> Tool:
    """The tool that a task asks for."""
    if task.spec.agent.tool == "answer":
        return AnswerTool(run_visible_check)
    return ShellTool()
