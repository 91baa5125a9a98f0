"""Control groups of boxes: what is written and what is read, on version 1 and 2.

Both are played by directories that look like them; `make test-cgroup2` tries the second.
"""

import itertools
import os
import signal
import subprocess
from pathlib import Path

import pytest

from trialyard.core.errors import LimitUnsupported
from trialyard.core.sandbox import Limits
from trialyard.sandboxes.cgroups import CgroupParent, kill_members
from trialyard.sandboxes.hierarchies import Hierarchy

LIMITS = Limits(cpus=0.5, memory_bytes=64 << 20, pids=32)


def v1_roots(tmp_path: Path) -> dict[str, Path]:
    roots = {name: tmp_path / name for name in ("memory", "pids", "cpu,cpuacct", "freezer")}
    for root in roots.values():
        root.mkdir()
    return roots


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("missing", ["memory", "pids", "cpu"])
def test_a_missing_controller_is_refused_by_name_or_reported(
    tmp_path: Path, missing: str, version: int
) -> None:
    controllers = frozenset({"memory", "pids", "cpu"}) - {missing}
    for inner in (tmp_path, tmp_path / "trialyard", tmp_path / "trialyard" / "me"):
        inner.mkdir(exist_ok=True)
        (inner / "cgroup.subtree_control").write_text("")
    parent = CgroupParent([Hierarchy(tmp_path, version, controllers)], "me")
    with pytest.raises(LimitUnsupported, match=rf"limits on {missing}:.*best-effort"):
        parent.prepare("u1", LIMITS)
    box, steps = parent.prepare("u1", LIMITS.model_copy(update={"enforcement": "best-effort"}))
    assert box.not_enforced == {missing}
    settings = [Path(word).name for flag, word in itertools.pairwise(steps) if flag == "--set"]
    assert {name.split(".")[0] for name in settings} == controllers
    assert box.oom_kills() == box.pids_now() + 1 == box.cpu_us() == 0


def test_cpu_seconds_need_a_counter(tmp_path: Path) -> None:
    hierarchies = [Hierarchy(tmp_path, 1, frozenset({"memory", "pids", "cpu"}))]
    parent = CgroupParent(hierarchies, "me")
    assert parent.not_enforced(Limits()) == frozenset()
    with pytest.raises(LimitUnsupported, match="limits on cpu:"):
        parent.not_enforced(Limits(cpu_s=1))


def test_a_cgroup_that_may_not_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "trialyard").write_text("in the way")
    parent = CgroupParent([Hierarchy(tmp_path, 1, frozenset({"memory", "pids", "cpu"}))], "me")
    with pytest.raises(LimitUnsupported, match=r"cpu, memory, pids: .*Not a directory"):
        parent.not_enforced(Limits())
    assert parent.not_enforced(Limits(enforcement="best-effort")) == {"cpu", "memory", "pids"}
    assert parent.directories() == ()
    assert parent.remove()


@pytest.fixture
def v2(tmp_path: Path) -> CgroupParent:
    for inner in (tmp_path, tmp_path / "trialyard", tmp_path / "trialyard" / "me"):
        inner.mkdir(exist_ok=True)
        (inner / "cgroup.subtree_control").write_text("")
    for name in ("memory.swap.max", "memory.oom.group"):
        (inner / name).write_text("")
    return CgroupParent([Hierarchy(tmp_path, 2, frozenset({"memory", "pids", "cpu"}))], "me")


def test_version_2_controllers_are_handed_down(v2: CgroupParent, tmp_path: Path) -> None:
    for inner in (tmp_path, tmp_path / "trialyard", tmp_path / "trialyard" / "me"):
        assert (inner / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_version_2_limits_are_set_before_joining(v2: CgroupParent, tmp_path: Path) -> None:
    _, steps = v2.prepare("u1", LIMITS)
    box = str(tmp_path / "trialyard" / "me" / "u1")
    assert steps == [
        "--group", box,
        "--set", f"{box}/memory.max", str(64 << 20),
        "--set", f"{box}/memory.swap.max", "0",
        "--set", f"{box}/memory.oom.group", "1",
        "--set", f"{box}/pids.max", "33",  # bubblewrap waits in the group, outside the box
        "--set", f"{box}/cpu.max", "50000 100000",
        "--join", box,
    ]  # fmt: skip


def test_version_2_counters_are_read(v2: CgroupParent, tmp_path: Path) -> None:
    box, _ = v2.prepare("u1", LIMITS)
    group = tmp_path / "trialyard" / "me" / "u1"
    group.mkdir()
    for name, text in {
        "memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n",
        "memory.peak": "123456\n",
        "cpu.stat": "usage_usec 5000\nuser_usec 3000\n",
        "pids.peak": "9\n",
        "pids.current": "3\n",
        "pids.events": "max 4\n",
    }.items():
        (group / name).write_text(text)
    assert box.oom_kills() == 3
    assert box.memory_peak_bytes() == 123456
    assert box.cpu_us() == 5000
    assert (box.pids_peak(), box.pids_now(), box.pids_refused()) == (8, 2, 4)
    box.close_counters()


@pytest.mark.parametrize(
    ("events", "own", "of_the_host"),
    [
        ("oom 0\noom_kill 0\n", 0, 0),
        ("oom 1\noom_kill 2\noom_group_kill 1\n", 2, 0),
        ("max 9\noom 0\noom_kill 2\noom_group_kill 1\n", 0, 2),
    ],
)
def test_the_host_may_run_out_of_memory_before_the_box(
    v2: CgroupParent, tmp_path: Path, events: str, own: int, of_the_host: int
) -> None:
    box, _ = v2.prepare("u1", LIMITS)
    group = tmp_path / "trialyard" / "me" / "u1"
    group.mkdir()
    (group / "memory.events").write_text(events)
    assert (box.oom_kills(), box.host_oom_kills()) == (own, of_the_host)
    box.close_counters()


@pytest.mark.parametrize(("peak_bytes", "own"), [(0, 0), (63 << 20, 0), ((64 << 20) - 4096, 2)])
def test_with_version_1_the_peak_tells_whose_limit_was_reached(
    tmp_path: Path, peak_bytes: int, own: int
) -> None:
    parent = CgroupParent([Hierarchy(tmp_path, 1, frozenset({"memory", "pids", "cpu"}))], "me")
    box, _ = parent.prepare("u1", LIMITS)
    group = tmp_path / "trialyard" / "me" / "u1"
    group.mkdir()
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (group / "memory.limit_in_bytes").write_text(f"{64 << 20}\n")
    (group / "memory.max_usage_in_bytes").write_text(f"{peak_bytes}\n")
    assert (box.oom_kills(), box.host_oom_kills()) == (own, 2 - own)
    box.close_counters()


def test_a_counter_that_the_kernel_lacks_reads_zero(v2: CgroupParent, tmp_path: Path) -> None:
    box, _ = v2.prepare("u1", LIMITS)
    (tmp_path / "trialyard" / "me" / "u1").mkdir()
    assert box.memory_peak_bytes() == box.pids_peak() == box.oom_kills() == 0


def test_settings_that_the_kernel_lacks_are_left_out(v2: CgroupParent, tmp_path: Path) -> None:
    """Without swap accounting there is no memory.swap.max, and a write to it would fail."""
    assert v2.limits_swap
    owner = tmp_path / "trialyard" / "me"
    for name in ("memory.swap.max", "memory.oom.group"):
        (owner / name).unlink()
    parent = CgroupParent([Hierarchy(tmp_path, 2, frozenset({"memory", "pids", "cpu"}))], "me")
    assert not parent.limits_swap
    _, steps = parent.prepare("u1", LIMITS)
    names = [Path(word).name for flag, word in itertools.pairwise(steps) if flag == "--set"]
    assert names == ["memory.max", "pids.max", "cpu.max"]


def test_peaks_that_the_kernel_does_not_keep_are_those_that_were_seen(
    v2: CgroupParent, tmp_path: Path
) -> None:
    box, _ = v2.prepare("u1", LIMITS)
    group = tmp_path / "trialyard" / "me" / "u1"
    group.mkdir()
    for memory, pids in ((100, 3), (700, 9), (50, 2)):
        (group / "memory.current").write_text(f"{memory}\n")
        (group / "pids.current").write_text(f"{pids}\n")
        box.sample_peaks()
    assert (box.memory_peak_bytes(), box.pids_peak(), box.pids_now()) == (700, 8, 1)
    box.close_counters()


def test_the_kernel_kills_a_whole_group_where_it_can(tmp_path: Path) -> None:
    (tmp_path / "cgroup.kill").write_text("")
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    kill_members(str(tmp_path))
    assert (tmp_path / "cgroup.kill").read_text() == "1"


def test_elsewhere_each_member_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        (tmp_path / "cgroup.procs").write_text(f"0\n{process.pid}\n")
        kill_members(str(tmp_path))
        assert process.wait(10) == -signal.SIGKILL
    kill_members(str(tmp_path))
    kill_members(str(tmp_path / "gone"))


def test_version_1_has_a_directory_for_each_hierarchy(tmp_path: Path) -> None:
    roots = v1_roots(tmp_path)
    hierarchies = [
        Hierarchy(roots["memory"], 1, frozenset({"memory"})),
        Hierarchy(roots["pids"], 1, frozenset({"pids"})),
        Hierarchy(roots["cpu,cpuacct"], 1, frozenset({"cpu", "cpuacct"})),
    ]
    parent = CgroupParent(hierarchies, "me")
    box, steps = parent.prepare("u1", LIMITS)
    assert len(box.joins) == 3
    memory, pids, cpu = (roots[n] / "trialyard/me/u1" for n in ("memory", "pids", "cpu,cpuacct"))
    settings = dict(itertools.pairwise(steps))
    assert settings[f"{memory}/memory.limit_in_bytes"] == str(64 << 20)
    assert settings[f"{memory}/memory.swappiness"] == "0"
    assert settings[f"{pids}/pids.max"] == "33"
    assert settings[f"{cpu}/cpu.cfs_quota_us"] == "50000"
    assert parent.remove()
    assert not (roots["memory"] / "trialyard" / "me").exists()
