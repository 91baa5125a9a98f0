"""The doctor tells safe hosts and boxes from unsafe ones, and names the cure."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from trialyard.core.errors import SandboxUnavailable
from trialyard.sandboxes import host as sandbox_host
from trialyard.sandboxes import plan
from trialyard.sandboxes.doctor import Finding, examine
from trialyard.sandboxes.doctor.ids import look_at, parse_subordinate

BOXES = "boxes of namespaces"


def findings() -> dict[str, Finding]:
    return {finding.name: finding for finding in asyncio.run(examine())}


def is_safe(found: dict[str, Finding]) -> bool:
    return all(finding.ok for finding in found.values() if finding.required)


def test_this_host_is_safe_and_the_whole_table_is_there() -> None:
    found = findings()
    assert is_safe(found)
    for name in (
        "privilege", "native program", "bubblewrap", "seccomp", "user namespaces", "cgroups",
        "overlayfs", "idmapped mounts", "swap", "uids of boxes", "disk limit", "network filter",
        "OCI runtime runc", "ids of boxes with root inside", "boxes with root inside",
    ):  # fmt: skip
        assert name in found
    assert "contain 6 probes" in found[BOXES].detail
    assert "contain 6 probes" in found["boxes with root inside"].detail
    assert not found["boxes with root inside"].required


def test_a_runtime_with_known_escapes_is_a_note_and_started_when_allowed() -> None:
    found = {f.name: f for f in asyncio.run(examine(allow_vulnerable_runtime=True))}
    assert "contain 6 probes" in found["boxes of runc"].detail
    assert not found["boxes of runc"].required


def test_without_bubblewrap_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_bubblewrap() -> Path:
        raise SandboxUnavailable("bubblewrap (bwrap) is missing; install it")

    monkeypatch.setattr("trialyard.sandboxes.doctor.host.find_bubblewrap", no_bubblewrap)
    found = findings()
    assert not found["bubblewrap"].ok
    assert found["bubblewrap"].required
    assert "install" in found["bubblewrap"].cure
    assert BOXES not in found


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = findings()
    assert not is_safe(found)
    assert "runs as root" in found["privilege"].cure
    assert BOXES not in found


def without(*words: str, instead: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Take some of bubblewrap's arguments away, or give it others."""

    def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
        real = plan.plan_box

        def weaker(*args: object) -> plan.LaunchPlan:
            made = real(*args)  # type: ignore[arg-type]
            text = "\0".join(made.steps)
            assert "\0".join(words) in text
            steps = text.replace("\0".join(words), instead).split("\0")
            return plan.LaunchPlan(made.program, tuple(steps))

        monkeypatch.setattr("trialyard.sandboxes.backend.plan_box", weaker)

    return take_away


def no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_all = b"\x06\0\0\0\0\0\xff\x7f"
    monkeypatch.setattr(sandbox_host, "seccomp_filters", lambda: (allow_all, allow_all))


@pytest.mark.parametrize(
    ("weaken", "probe"),
    [
        (no_filter, "mounts and kernel"),
        (without("--unshare-net", instead="--unshare-ipc"), "network"),
        (without("--cap-drop", "ALL", instead="--cap-add\0CAP_SYS_NICE"), "capabilities"),
    ],
    ids=["no seccomp", "the host's network", "a capability"],
)
def test_a_box_without_one_layer_is_not_safe(
    monkeypatch: pytest.MonkeyPatch, weaken: Callable[[pytest.MonkeyPatch], None], probe: str
) -> None:
    weaken(monkeypatch)
    found = findings()
    assert not is_safe(found)
    assert "not contained" in found[BOXES].detail
    assert probe in found[BOXES].detail


def test_ids_that_do_not_exist_or_are_somebodys_are_told() -> None:
    wanted = (200_000, 300_000)
    everything = [(0, 1 << 32)]
    assert look_at("uids of boxes", wanted, everything, []).ok
    missing = look_at("uids of boxes", wanted, [(0, 65536)], [])
    assert (missing.ok, missing.required) == (False, True)
    taken = list(parse_subordinate("subuid", "ann:165536:65536\n# nobody\nbob:x:1\n"))
    assert taken == [("ann's subuid", (165536, 231072))]
    shared = look_at("uids of boxes", wanted, everything, taken)
    assert (shared.ok, shared.required) == (False, False)
    assert "ann's subuid" in shared.detail
