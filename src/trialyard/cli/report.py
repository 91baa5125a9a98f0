"""``trialyard report``: one self-contained page about a run."""

import argparse
from pathlib import Path

from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.run.directory import RunDirectory


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "report",
        "write report.html and the learning curve of a run",
        examples="  trialyard report runs/quickstart\n",
        handler=report,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    add_json(parser)


def report(arguments: argparse.Namespace) -> int:
    from trialyard.run.wiring.report import report_run

    RunDirectory.open(arguments.run)
    path = report_run(arguments.run)
    if arguments.json:
        print_json({"report": str(path)})
    else:
        print(path)
    return 0
