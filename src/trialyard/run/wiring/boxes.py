"""Pool, grader and tools: what runs without a trainer and without a store."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from trialyard.core.clock import SystemClock
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import Task
from trialyard.graders.cache import CachedGrader
from trialyard.graders.fresh_box import FreshBoxGrader
from trialyard.graders.layers import GRADER, PYTHON, RUNNER_SOURCE
from trialyard.graders.values_check import run_visible_check
from trialyard.images.host import HOST, host_image
from trialyard.rollout.answer import AnswerTool
from trialyard.rollout.shell import ShellTool
from trialyard.rollout.tools import Tool
from trialyard.sandboxes.pool import NamespacePool


def layers() -> dict[str, Path]:
    """Read-only directories that every box has: an interpreter and the grader's runner."""
    return {str(Path(PYTHON).parents[1]): Path(sys.base_prefix), GRADER: RUNNER_SOURCE}


@asynccontextmanager
async def open_pool(*, max_boxes: int, warm: int) -> AsyncIterator[SandboxPool]:
    """A pool of boxes on this machine; nothing of it is left afterwards."""
    pool = NamespacePool(
        {HOST: host_image()}, layers=layers(), max_boxes=max_boxes, warm_per_kind=warm
    )
    try:
        yield pool
    finally:
        await pool.close()


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
