"""Boxes for the tests of this folder."""

from collections.abc import AsyncIterator

import pytest

from tests.boxes import namespace_pool
from trialyard.core.sandbox import Limits
from trialyard.sandboxes.namespace import NamespaceSandbox
from trialyard.sandboxes.pool import NamespacePool


@pytest.fixture
async def pool() -> AsyncIterator[NamespacePool]:
    made = namespace_pool()
    yield made
    await made.close()
    assert made.counters()["leaked"] == 0


@pytest.fixture
async def box(pool: NamespacePool) -> AsyncIterator[NamespaceSandbox]:
    async with pool.acquire(image="host", limits=Limits(), owner="test") as sandbox:
        assert isinstance(sandbox, NamespaceSandbox)
        yield sandbox
