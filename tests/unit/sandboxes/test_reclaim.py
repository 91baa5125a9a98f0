"""What killed owners left is found, shown and removed; what lives is left alone."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.boxes import groups_of, namespace_pool, processes_of_owner
from trialyard.cli.main import main
from trialyard.core.sandbox import Limits
from trialyard.sandboxes.hierarchies import Hierarchy
from trialyard.sandboxes.owner import Owner
from trialyard.sandboxes.reclaim import list_owners, reap

KIND = ("host", Limits(), "/work", "user")


def dead_owner(
    root: Path, tree: Path, name: str = "dead", hierarchies: Sequence[Hierarchy] = ()
) -> Path:
    """An owner whose process is gone, with a box in its table and a cgroup."""
    owner = Owner(root, name, list(hierarchies))
    owner.table.starting("box-1", KIND, 7, 0.0)
    owner.table.close()
    owner.uids.close()
    assert owner._lock is not None
    os.close(owner._lock)
    (tree / "trialyard" / name / "u7").mkdir(parents=True)
    return owner.directory


def test_a_runtime_directory_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert list_owners(tmp_path / "nowhere") == []
    assert reap(tmp_path / "nowhere", []) == []
    assert not (tmp_path / "nowhere").exists()


def test_reaping_says_what_was_left_and_again_that_there_is_nothing(tmp_path: Path) -> None:
    root, tree = tmp_path / "run", tmp_path / "cgroup"
    hierarchies = [Hierarchy(tree, 1, frozenset({"memory"}))]
    living = Owner(root, "living", [])
    living.table.starting("box-2", KIND, 8, 0.0)
    directory = dead_owner(root, tree)
    owners = {owner.supervisor: owner for owner in list_owners(root)}
    assert {name: owner.alive for name, owner in owners.items()} == {"living": True, "dead": False}
    assert [box.id for box in owners["dead"].record.boxes] == ["box-1"]
    [reaped] = reap(root, hierarchies)
    assert (reaped.supervisor, reaped.boxes, reaped.groups) == ("dead", ("box-1",), 1)
    assert (reaped.processes, reaped.mounts, reaped.gone) == (0, 0, True)
    assert not directory.exists()
    assert not (tree / "trialyard").exists()
    assert reap(root, hierarchies) == []
    assert [owner.supervisor for owner in list_owners(root)] == ["living"]
    living.close()


def test_what_is_mounted_in_a_dead_owners_directory_is_detached_and_not_deleted(
    tmp_path: Path,
) -> None:
    directory = dead_owner(tmp_path / "run", tmp_path / "cgroup")
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "file").write_text("kept")
    (directory / "mnt").mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = (str(path).encode() for path in (treasure, directory / "mnt"))
    assert libc.mount(source, target, None, 4096, None) == 0  # MS_BIND
    [reaped] = reap(tmp_path / "run", [])
    assert (reaped.mounts, reaped.gone) == (1, True)
    assert not directory.exists()
    assert (treasure / "file").read_text() == "kept"


def test_what_would_not_go_stays_for_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, tree = tmp_path / "run", tmp_path / "cgroup"
    hierarchies = [Hierarchy(tree, 1, frozenset({"memory"}))]
    directory = dead_owner(root, tree)
    stuck = tree / "trialyard" / "dead" / "u7" / "busy"
    stuck.mkdir()
    monkeypatch.setattr("trialyard.sandboxes.reclaim._RECLAIM_TIMEOUT_S", 0.05)
    [reaped] = reap(root, hierarchies)
    assert not reaped.gone
    assert directory.exists()
    stuck.rmdir()
    assert [each.gone for each in reap(root, hierarchies)] == [True]
    assert not directory.exists()


def test_groups_are_found_that_were_delegated_to_the_dead_owner_alone(tmp_path: Path) -> None:
    root, service, mine = (tmp_path / name for name in ("run", "service", "mine"))
    directory = dead_owner(root, service, hierarchies=[Hierarchy(service, 2, frozenset())])
    [reaped] = reap(root, [Hierarchy(mine, 2, frozenset({"memory"}))])
    assert (reaped.groups, reaped.gone) == (1, True)
    assert not directory.exists()
    assert list(service.iterdir()) == []


async def test_the_list_shows_each_box_from_another_process() -> None:
    pool = namespace_pool(max_boxes=3)
    limits = Limits(wall_s=500, pids=33)
    async with pool.acquire(image="host", limits=limits, owner="run/7", ttl_s=100) as box:
        done = subprocess.run(  # noqa: ASYNC221 - the pool has nothing to do meanwhile
            [sys.executable, "-m", "trialyard.cli.main", "sandbox", "list", "--json"],
            capture_output=True, check=True,
        )  # fmt: skip
        assert pool._host is not None
        mine = [
            each
            for each in json.loads(done.stdout)["boxes"]
            if each["supervisor"] == pool._host.owner.name
        ]
        assert [each["id"] for each in mine] == [box.id]
        [row] = mine
        assert (row["owner"], row["image"], row["user"], row["state"]) == (
            "run/7", "host", "user", "leased",
        )  # fmt: skip
        assert row["limits"]["pids"] == 33
        assert row["supervisor_alive"]
        assert 90 < row["left_s"] <= 100
        assert 0 < row["age_s"] < 60
        assert row["pid"] in processes_of_owner(pool._host.owner.name)
        assert groups_of(pool._host.owner.name)
        assert main(["sandbox", "reap"]) == 0  # the living are left alone
        assert (await box.run(["true"])).ok
    await pool.close()


def test_list_and_reap_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead_owner(tmp_path, tmp_path / "cgroup")
    where = ["--runtime-directory", str(tmp_path)]
    assert main(["sandbox", "list", *where]) == 0
    text = capsys.readouterr().out
    assert "box-1" in text
    assert "dead (dead)" in text
    assert main(["sandbox", "reap", "--json", *where]) == 0
    [reaped] = json.loads(capsys.readouterr().out)["reaped"]
    assert (reaped["supervisor"], reaped["boxes"], reaped["gone"]) == ("dead", ["box-1"], True)
    assert main(["sandbox", "reap", *where]) == 0
    assert "no dead supervisor" in capsys.readouterr().out
