"""``trialyard sandbox log``: what was run in the boxes of a run, and which files were touched."""

import argparse
import time
from pathlib import Path
from typing import Any

from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.core.errors import NotFoundError


def register(actions: Commands) -> None:
    log = add_command(
        actions,
        "log",
        "show every command and file operation in the boxes of a run",
        examples="  trialyard sandbox log runs/quickstart\n"
        "  trialyard sandbox log runs/quickstart box-3f9a6c01d2e4 --json\n",
        handler=show_log,
    )
    log.add_argument("run", metavar="RUN", help="a run directory")
    log.add_argument("box", metavar="BOX", nargs="?", help="the id of one box (default: all)")
    add_json(log)


def show_log(arguments: argparse.Namespace) -> int:
    """One line per event; with ``--json`` one object per line, as they were written."""
    from trialyard.run.directory import RunDirectory
    from trialyard.sandboxes.box_log import read_box_log

    directory = RunDirectory(Path(arguments.run)).boxes
    if not directory.is_dir():
        raise NotFoundError(f"no log of boxes in {arguments.run} (no {directory.name}/ there)")
    found = 0
    for event in read_box_log(directory, arguments.box):
        found += 1
        if arguments.json:
            print_json(event)
        else:
            print(_line(event))
    if arguments.box is not None and not found:
        raise NotFoundError(f"no box {arguments.box!r} in the log of {arguments.run}")
    return 0


def _line(event: dict[str, Any]) -> str:
    when = time.strftime("%H:%M:%S", time.localtime(event["at_s"]))
    return f"{when} {event.get('box', '-'):16} {event['event']:8} {_what(event)}"


def _what(event: dict[str, Any]) -> str:
    name = event["event"]
    if name == "command":
        hit = f" ({', '.join(event['limits_hit'])})" if event.get("limits_hit") else ""
        code = event.get("exit_code")
        end = event["status"] if code is None else f"{event['status']} {code}"
        return f"{end}{hit}: {' '.join(event['argv'])!r}"
    if name == "file":
        said = event["error"] or f"{event['files']} files, {event['size_bytes']} bytes"
        return f"{event['operation']} {event['path']!r}: {said}"
    rest = {k: v for k, v in event.items() if k not in ("at_s", "event", "box", "limits")}
    return ", ".join(f"{key} {value}" for key, value in rest.items())
