"""Which cgroup trees are found, where boxes may lie in them, and how controllers are handed down.

The rules of version 2 are played by a function in place of writing: a group with processes in
it hands no controller down.
"""

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest

from trialyard.core.errors import LimitUnsupported
from trialyard.core.sandbox import Limits
from trialyard.sandboxes import hierarchies
from trialyard.sandboxes.cgroups import CgroupParent
from trialyard.sandboxes.hierarchies import CORE, LEAF, Hierarchy, find_hierarchies, hand_down

ALL = frozenset({"memory", "pids", "cpu"})


def mountinfo(*lines: tuple[str, str, str], shown: str = "/") -> str:
    return "".join(
        f"{30 + i} 25 0:{i} {shown} {point} rw,relatime shared:{i} - {kind} cgroup rw,{options}\n"
        for i, (point, kind, options) in enumerate(lines)
    )


def version_2(directory: Path, controllers: str = "cpuset cpu io memory pids\n") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.controllers").write_text(controllers)
    return directory


def test_version_1_controllers_are_found_where_they_are_mounted(tmp_path: Path) -> None:
    roots = {name: tmp_path / name for name in ("memory", "pids", "cpu,cpuacct", "freezer")}
    for root in roots.values():
        root.mkdir()
    text = mountinfo(*((str(path), "cgroup", name) for name, path in roots.items()))
    found = {h.root: h.controllers for h in find_hierarchies(text, "3:memory:/own\n")}
    assert found == {
        roots["memory"]: {"memory"},
        roots["pids"]: {"pids"},
        roots["cpu,cpuacct"]: {"cpu", "cpuacct"},
    }


def test_a_version_2_tree_without_controllers_kills_and_freezes(tmp_path: Path) -> None:
    unified, memory = version_2(tmp_path / "unified", "\n"), tmp_path / "memory"
    memory.mkdir()
    text = mountinfo((str(memory), "cgroup", "memory"), (str(unified), "cgroup2", "x"))
    first, second = find_hierarchies(text, "3:memory:/\n0::/\n")
    assert (first.root, first.version, first.controllers) == (unified, 2, frozenset({CORE}))
    assert (second.root, second.version) == (memory, 1)
    parent = CgroupParent([first, second], "me")
    box, steps = parent.prepare("u1", Limits(enforcement="best-effort"))
    assert box.joins == tuple(f"{root}/trialyard/me/u1" for root in (unified, memory))
    assert box.not_enforced == {"pids", "cpu"}
    assert not any("unified" in word for flag, word in pairwise(steps) if flag == "--set")


def test_version_2_controllers_come_from_its_own_list(tmp_path: Path) -> None:
    version_2(tmp_path)
    [found] = find_hierarchies(mountinfo((str(tmp_path), "cgroup2", "x")), "0::/a\n")
    assert (found.root, found.version) == (tmp_path, 2)
    assert found.controllers == ALL


@pytest.mark.parametrize(
    ("shown", "membership", "group"),
    [
        ("/", "/a.slice/b.service", "a.slice/b.service"),
        ("/", f"/a.slice/b.service/{LEAF}", "a.slice/b.service"),
        ("/docker/x", "/docker/x/y", "y"),
        ("/docker/x", "/docker/x", "."),
        ("/docker/x", "/elsewhere", "."),
        ("/", "/../outside", "."),
    ],
)
def test_below_a_root_that_cannot_be_written_the_own_group_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, membership: str, group: str
) -> None:
    own = version_2(tmp_path / group, "memory pids\n")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    text = mountinfo((str(tmp_path), "cgroup2", "x"), shown=shown)
    [found] = find_hierarchies(text, f"0::{membership}\n")
    assert (found.root, found.controllers) == (own, frozenset({"memory", "pids"}))


def test_a_group_that_was_delegated_to_us_keeps_its_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the service then holds for all of its boxes together."""
    version_2(tmp_path)
    own = version_2(tmp_path / "a.slice" / "b.service", "memory pids\n")

    def getxattr(path: Path, name: str) -> bytes:
        if path == own and name == "user.delegate":
            return b"1"
        raise OSError(errno.ENODATA, "no data")

    monkeypatch.setattr(os, "getxattr", getxattr)
    text = mountinfo((str(tmp_path), "cgroup2", "x"))
    for membership in ("0::/a.slice/b.service\n", f"0::/a.slice/b.service/{LEAF}\n"):
        [found] = find_hierarchies(text, membership)
        assert (found.root, found.controllers) == (own, frozenset({"memory", "pids"}))
    [found] = find_hierarchies(text, "0::/a.slice/c.service\n")
    assert found.root == tmp_path


class Kernel:
    """Takes writes as version 2 does."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses

    def write(self, path: str, value: str) -> None:
        file = Path(path)
        if file.name == "cgroup.procs":
            before = (file.parent.parent / "cgroup.procs").read_text().split()
            (file.parent.parent / "cgroup.procs").write_text(
                "\n".join(pid for pid in before if pid != value)
            )
            file.write_text(f"{file.read_text() if file.exists() else ''}{value}\n")
        elif (file.parent / "cgroup.procs").read_text().split():
            raise OSError(errno.EBUSY, "Device or resource busy")
        elif self.refuses and self.refuses in value:
            raise OSError(errno.EINVAL, "Invalid argument")
        else:
            names = " ".join(word.lstrip("+") for word in value.split())
            file.write_text(f"{file.read_text()} {names}".strip())


def group(directory: Path, members: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.procs").write_text(members)
    (directory / "cgroup.subtree_control").write_text("")
    return directory


def enabled(directory: Path) -> set[str]:
    return set((directory / "cgroup.subtree_control").read_text().split())


def test_processes_leave_a_group_that_hands_controllers_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hierarchies, "write_setting", Kernel().write)
    own = group(tmp_path, "7\n8\n")
    assert hand_down(own, ALL) == {}
    assert (own / LEAF / "cgroup.procs").read_text().split() == ["7", "8"]
    assert enabled(own) == ALL
    assert hand_down(own, ALL) == {}


def test_a_process_of_another_pid_namespace_is_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hierarchies, "write_setting", Kernel().write)
    refused = hand_down(group(tmp_path, "7\n0\n"), ALL)
    assert refused.keys() == ALL
    assert "another pid namespace" in refused["cpu"]


def test_a_controller_that_is_refused_does_not_cost_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hierarchies, "write_setting", Kernel(refuses="cpu").write)
    for directory in (tmp_path, tmp_path / "trialyard", tmp_path / "trialyard" / "me"):
        group(directory)
    parent = CgroupParent([Hierarchy(tmp_path, 2, ALL)], "me")
    assert enabled(tmp_path / "trialyard" / "me") == {"memory", "pids"}
    assert parent.not_enforced(Limits(enforcement="best-effort")) == {"cpu"}
    with pytest.raises(LimitUnsupported, match=r"limits on cpu: .*Invalid argument"):
        parent.not_enforced(Limits())
