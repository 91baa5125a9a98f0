"""``trialyard train`` and ``trialyard resume``."""

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.cli.progress import progress
from trialyard.core.events import EventSink
from trialyard.run.config import load_config, parse_override
from trialyard.run.directory import RunDirectory

EXAMPLES = """\
  trialyard train configs/quickstart.toml
  trialyard train configs/quickstart.toml --out runs/mine --set seed=1 --set rl.steps=50
  trialyard resume runs/mine
"""


def register(commands: Commands) -> None:
    parser = add_command(
        commands, "train", "train a policy as a configuration says", examples=EXAMPLES,
        handler=train,
    )  # fmt: skip
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    parser.add_argument("--out", type=Path, help="run directory (default: runs/NAME)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key"
    )
    parser.add_argument("--or-resume", action="store_true", help="go on if the run exists")
    add_json(parser)
    parser = add_command(
        commands, "resume", "go on with an interrupted run", examples=EXAMPLES, handler=resume
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    add_json(parser)


def train(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config, dict(parse_override(text) for text in arguments.set))
    root = arguments.out or Path("runs") / config.name
    if arguments.or_resume and RunDirectory(root).config_file.exists():
        return _run(root, arguments.json)
    RunDirectory.create(root, config)
    return _run(root, arguments.json)


def resume(arguments: argparse.Namespace) -> int:
    return _run(arguments.run, arguments.json)


def _run(root: Path, as_json: bool) -> int:
    from trialyard.run.wiring.report import report_run

    directory, _ = RunDirectory.open(root)
    with directory.locked(), progress(as_json) as sink:
        summary = asyncio.run(_until_done_or_interrupted(root, sink))
    report = report_run(root)
    if as_json:
        print_json({"kind": "report", "path": str(report)})
    else:
        _print_table(summary)
        print(f"\nreport: {report}\nsummary: {directory.summary_file}")
    return 0


async def _until_done_or_interrupted(root: Path, sink: EventSink) -> dict[str, Any]:
    """The first SIGINT or SIGTERM cancels the run, which lets go of everything it holds."""
    from trialyard.run.wiring.training import run_experiment

    task = asyncio.ensure_future(run_experiment(root, sink))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        print(
            f"stopped; all finished work is kept. Go on with: trialyard resume {root}",
            file=sys.stderr,
        )
        raise KeyboardInterrupt from None


def _rate(rates: dict[str, Any], mode: str) -> str:
    low, high = rates[f"{mode}_interval"]
    return f"{rates[mode]:.1%} ({low:.0%}-{high:.0%})"


def _print_table(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{summary['name']}: held-out solve rate (95 % interval)")
    for column in ("", "greedy", "sampled", "tasks"):
        table.add_column(column, justify="left" if not column else "right")
    for label, rates in summary["held_out"].items():
        table.add_row(label, _rate(rates, "greedy"), _rate(rates, "sampled"), str(rates["n"]))
    console = Console()
    console.print(table)
    wall = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in summary["wall_s"].items())
    console.print(f"wall time: {wall}")
    console.print(
        f"{summary['rollouts']} rollouts in {summary['steps']} steps; staleness "
        f"{json.dumps(summary['staleness'])}; faults {json.dumps(summary['faults'])}; "
        f"idle {json.dumps(summary['idle'])}"
    )
