"""Boxes for the tests of this folder."""

from collections.abc import AsyncIterator

import pytest

from tests.boxes import namespace_pool
from trialyard.core.sandbox import Limits
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool


@pytest.fixture
def backend() -> str:
    """What sets the boxes up; a module that looks at every backend overrides it."""
    return "namespace"


@pytest.fixture
async def pool(backend: str) -> AsyncIterator[NamespacePool]:
    made = namespace_pool(backend=backend)
    yield made
    await made.close()
    assert made.counters()["leaked"] == 0


@pytest.fixture
async def box(pool: NamespacePool) -> AsyncIterator[NamespaceSandbox]:
    async with pool.acquire(image="host", limits=Limits(), owner="test") as sandbox:
        assert isinstance(sandbox, NamespaceSandbox)
        yield sandbox
