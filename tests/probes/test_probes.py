"""Every hostile program of this folder: ``make probes``."""

from pathlib import Path

import pytest

from tests.probes.harness import probes, run_probe


@pytest.mark.parametrize("how", ["fresh", "forked", "oci"])
@pytest.mark.parametrize("probe", probes(), ids=lambda probe: probe.name)
async def test_the_probe_is_contained(probe: Path, how: str, tmp_path: Path) -> None:
    backend = "oci" if how == "oci" else "namespace"
    await run_probe(probe, tmp_path, warm=how == "forked", backend=backend)
