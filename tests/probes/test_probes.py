"""Every hostile program of this folder: ``make probes``."""

from pathlib import Path

import pytest

from tests.probes.harness import probes, run_probe
from trialyard.core.sandbox import BoxUser


@pytest.mark.parametrize("how", ["fresh", "forked", "oci", "root", "oci-root"])
@pytest.mark.parametrize("probe", probes(), ids=lambda probe: probe.name)
async def test_the_probe_is_contained(probe: Path, how: str, tmp_path: Path) -> None:
    backend = "oci" if how.startswith("oci") else "namespace"
    user: BoxUser = "root" if how.endswith("root") else "user"
    await run_probe(probe, tmp_path, warm=how == "forked", backend=backend, user=user)
