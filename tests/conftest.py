"""Fixtures for tests that need real boxes: one pool for the whole session."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from trialyard.core.sandbox import SandboxPool
from trialyard.graders.layers import (
    GRADER,
    PYTEST,
    PYTHON,
    RUNNER_SOURCE,
    build_pytest_layer,
    compile_runners,
)
from trialyard.images.host import host_image
from trialyard.sandboxes.pool import NamespacePool


@pytest.fixture(scope="session")
def box_layers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Read-only directories of every box: interpreter, the grader's runners, pytest."""
    compile_runners()
    return {
        str(Path(PYTHON).parents[1]): Path(sys.base_prefix),
        GRADER: RUNNER_SOURCE,
        PYTEST: build_pytest_layer(tmp_path_factory.mktemp("layers") / "pytest"),
    }


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pool(box_layers: dict[str, Path]) -> AsyncIterator[SandboxPool]:
    """Boxes from the host's own system."""
    images = {"host": host_image()}
    boxes = NamespacePool(images, layers=box_layers, max_boxes=16, warm_per_kind=2)
    yield boxes
    await boxes.close()
