"""Host ids for boxes: there, and nobody else's."""

import pwd
from collections.abc import Iterable
from pathlib import Path

from trialyard.sandboxes.doctor.finding import Finding
from trialyard.sandboxes.oci import SETUP_UID_OFFSET
from trialyard.sandboxes.owner import (
    IDS_PER_RANGE,
    MAX_BLOCKS,
    MAX_RANGE_BLOCKS,
    RANGE_BASE,
    RANGES_PER_BLOCK,
    UID_BASE,
    UIDS_PER_BLOCK,
)

Range = tuple[int, int]
"""First id, and the one after the last."""
NUM_UIDS = MAX_BLOCKS * UIDS_PER_BLOCK
_REQUIRED = "uids of boxes"
RANGES: dict[str, Range] = {
    _REQUIRED: (UID_BASE, UID_BASE + NUM_UIDS),
    "uids of OCI runtimes": (
        UID_BASE + SETUP_UID_OFFSET,
        UID_BASE + SETUP_UID_OFFSET + NUM_UIDS,
    ),
    "ids of boxes with root inside": (
        RANGE_BASE,
        RANGE_BASE + MAX_RANGE_BLOCKS * RANGES_PER_BLOCK * IDS_PER_RANGE,
    ),
}


def ids() -> list[Finding]:
    """Whether each range may be used here."""
    mapped = _mapped(Path("/proc/self/uid_map").read_text())
    taken = list(_taken())
    return [look_at(name, wanted, mapped, taken) for name, wanted in RANGES.items()]


def look_at(
    name: str, wanted: Range, mapped: list[Range], taken: list[tuple[str, Range]]
) -> Finding:
    """One range, given which ids exist in this namespace and which are somebody's."""
    detail = f"{wanted[0]} to {wanted[1] - 1}"
    if not any(first <= wanted[0] and wanted[1] <= end for first, end in mapped):
        return Finding(
            name, False, f"{detail} do not exist here: this is a user namespace",
            "run on the host, or in a container without a user namespace of its own",
            required=name == _REQUIRED,
        )  # fmt: skip
    others = [who for who, (first, end) in taken if first < wanted[1] and wanted[0] < end]
    if others:
        return Finding(
            name, False, f"{detail} are shared with {', '.join(others[:3])}",
            "move them: usermod --del-subuids and --add-subuids (and the same for subgids), or "
            "let nobody run containers with them", required=False,
        )  # fmt: skip
    return Finding(name, True, f"{detail}, nobody else's", required=name == _REQUIRED)


def _mapped(text: str) -> list[Range]:
    rows = [list(map(int, line.split())) for line in text.splitlines()]
    return [(inside, inside + count) for inside, _, count in rows]


def _taken() -> Iterable[tuple[str, Range]]:
    """Accounts, and ranges that rootless containers use."""
    for entry in pwd.getpwall():
        yield f"the account {entry.pw_name}", (entry.pw_uid, entry.pw_uid + 1)
    for file in (Path("/etc/subuid"), Path("/etc/subgid")):
        if file.exists():
            yield from parse_subordinate(file.name, file.read_text())


def parse_subordinate(name: str, text: str) -> Iterable[tuple[str, Range]]:
    """The ranges of /etc/subuid or /etc/subgid; lines that are none are passed over."""
    for line in text.splitlines():
        who, _, numbers = line.partition(":")
        first, _, count = numbers.partition(":")
        if first.isdigit() and count.isdigit():
            yield f"{who}'s {name}", (int(first), int(first) + int(count))
