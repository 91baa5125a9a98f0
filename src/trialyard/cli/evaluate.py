"""``trialyard evaluate``: held-out solve rates of a run's last checkpoint."""

import argparse
import asyncio
from pathlib import Path

from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.cli.progress import describe_evaluation, progress
from trialyard.run.directory import RunDirectory

EXAMPLES = """\
  trialyard evaluate runs/quickstart --samples 4
  trialyard evaluate runs/quickstart --feedback swapped    # does the policy read its feedback?
"""


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "evaluate",
        "evaluate the last checkpoint of a run on its held-out tasks",
        examples=EXAMPLES,
        handler=evaluate,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="sampled tries a task")
    parser.add_argument(
        "--feedback",
        choices=("own", "swapped"),
        default="own",
        help="swapped: a failed try is answered with another task's feedback",
    )
    add_json(parser)


def evaluate(arguments: argparse.Namespace) -> int:
    from trialyard.run.wiring.training import evaluate_run

    directory, _ = RunDirectory.open(arguments.run)
    with directory.locked(), progress(False) as sink:
        rates = asyncio.run(
            evaluate_run(
                arguments.run, sink, samples=arguments.samples, feedback=arguments.feedback
            )
        )
    event = {"label": f"{arguments.feedback} feedback", **rates.to_json()}
    if arguments.json:
        print_json(event)
    else:
        print(describe_evaluation(event))
    return 0
