"""``trialyard sandbox list`` and ``reap``: the boxes of every supervisor on this machine."""

import argparse
import time
from pathlib import Path
from typing import Any

from trialyard.cli.command import Commands, add_command, add_json, print_json

COLUMNS = ("id", "state", "owner", "image", "user", "uid", "pid", "age_s", "left_s", "supervisor")


def register(actions: Commands) -> None:
    listing = add_command(
        actions,
        "list",
        "show every box of every supervisor on this machine",
        examples="  trialyard sandbox list\n  trialyard sandbox list --json\n",
        handler=list_boxes,
    )
    reaping = add_command(
        actions,
        "reap",
        "remove what killed supervisors left: processes, cgroups, mounts, directories",
        examples="  trialyard sandbox reap\n",
        handler=reap_boxes,
    )
    for parser in (listing, reaping):
        parser.add_argument(
            "--runtime-directory", metavar="DIR", help="where supervisors keep their tables"
        )
        add_json(parser)


def _directory(arguments: argparse.Namespace) -> Path:
    from trialyard.sandboxes.host import RUNTIME_DIRECTORY

    return Path(arguments.runtime_directory or RUNTIME_DIRECTORY)


def list_boxes(arguments: argparse.Namespace) -> int:
    """Changes nothing; boxes of a dead supervisor are shown as such."""
    rows = _rows(_directory(arguments), time.monotonic())
    if arguments.json:
        print_json({"boxes": rows})
        return 0
    shown = [[_text(row, column) for column in COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *shown, strict=True)]
    for line in [list(COLUMNS), *shown]:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
    return 0


def _rows(directory: Path, now_s: float) -> list[dict[str, Any]]:
    from trialyard.sandboxes.reclaim import list_owners

    return [
        {
            "id": box.id,
            "state": box.state,
            "owner": box.owner,
            "image": box.image,
            "limits": dict(box.limits),
            "workdir": box.workdir,
            "user": box.user,
            "uid": box.uid,
            "pid": box.pid,
            "age_s": round(now_s - box.started_s, 3),
            "left_s": None if box.deadline_s is None else round(box.deadline_s - now_s, 3),
            "supervisor": owner.supervisor,
            "supervisor_pid": owner.record.pid,
            "supervisor_alive": owner.alive,
        }
        for owner in list_owners(directory)
        for box in owner.record.boxes
    ]


def _text(row: dict[str, Any], column: str) -> str:
    value = row[column]
    if column == "supervisor":
        return f"{row['supervisor_pid']}" if row["supervisor_alive"] else f"{value} (dead)"
    if isinstance(value, float):
        return f"{value:.0f}"
    return "-" if value is None else str(value)


def reap_boxes(arguments: argparse.Namespace) -> int:
    """Exit 1 when something would not go. Boxes of living supervisors are never touched."""
    from trialyard.sandboxes.hierarchies import read_hierarchies
    from trialyard.sandboxes.reclaim import reap

    found = reap(_directory(arguments), read_hierarchies())
    if arguments.json:
        fields = ("supervisor", "boxes", "processes", "groups", "mounts", "gone")
        print_json({"reaped": [{name: getattr(each, name) for name in fields} for each in found]})
    for each in found if not arguments.json else ():
        print(
            f"{each.supervisor}: {len(each.boxes)} boxes, {each.processes} processes, "
            f"{each.groups} cgroups, {each.mounts} mounts"
            f"{'' if each.gone else '; something would not go, try again'}"
        )
    if not found and not arguments.json:
        print("no dead supervisor had left anything")
    return 0 if all(each.gone for each in found) else 1
