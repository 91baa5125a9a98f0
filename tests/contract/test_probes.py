"""The first ten hostile programs are contained; all of them with ``make probes``."""

from pathlib import Path

import pytest

from tests.boxes import BACKENDS
from tests.probes.harness import probes, run_probe

FIRST_TEN = probes()[:10]
OF_EVERY_KIND = [
    probe
    for probe in probes()
    if probe.name[:2] in ("03", "41", "45", "53", "59", "61", "77", "79")
]
"""Memory, capabilities, the host's files, mounts, processes, network, normal work, our death."""


def test_the_first_ten_are_the_first_ten() -> None:
    assert [probe.name[:2] for probe in FIRST_TEN] == [
        "01", "03", "05", "07", "09", "11", "13", "15", "17", "19",
    ]  # fmt: skip


@pytest.mark.parametrize("probe", OF_EVERY_KIND, ids=lambda probe: probe.name)
async def test_the_probe_is_contained_by_an_oci_runtime(probe: Path, tmp_path: Path) -> None:
    await run_probe(probe, tmp_path, backend="oci")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("probe", OF_EVERY_KIND, ids=lambda probe: probe.name)
async def test_the_probe_is_contained_with_root_inside(
    probe: Path, backend: str, tmp_path: Path
) -> None:
    await run_probe(probe, tmp_path, backend=backend, user="root")


@pytest.mark.parametrize("probe", FIRST_TEN[:9:4], ids=lambda probe: probe.name)
async def test_the_probe_is_contained_as_a_fork(probe: Path, tmp_path: Path) -> None:
    await run_probe(probe, tmp_path, warm=True)


@pytest.mark.parametrize("probe", FIRST_TEN, ids=lambda probe: probe.name)
async def test_the_probe_is_contained(probe: Path, tmp_path: Path) -> None:
    await run_probe(probe, tmp_path)
