"""Every hostile program of this folder: ``make probes``."""

from pathlib import Path

import pytest

from tests.probes.harness import probes, run_probe


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "forked"])
@pytest.mark.parametrize("probe", probes(), ids=lambda probe: probe.name)
async def test_the_probe_is_contained(probe: Path, warm: bool, tmp_path: Path) -> None:
    await run_probe(probe, tmp_path, warm=warm)
