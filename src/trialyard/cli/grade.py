"""``trialyard grade``: what a solution of a task is worth."""

import argparse
import asyncio
from pathlib import Path

from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.core.grader import Verdict

EXAMPLES = """\
  trialyard grade tasks/mbpp/601 --solution gold
  trialyard grade tasks/mbpp/601 --solution my_solution.py --json
  trialyard grade tasks/mbpp/* --solution none --json
"""
EXIT_UNGRADED = 3


def register(commands: Commands) -> None:
    parser = add_command(
        commands, "grade", "grade solutions in fresh sandboxes", examples=EXAMPLES, handler=grade
    )
    parser.add_argument("tasks", type=Path, metavar="TASK", nargs="+", help="task directories")
    parser.add_argument(
        "--solution",
        default="gold",
        metavar="gold|none|DIR|FILE",
        help="the reference, nothing, a folder of files, or the one file the task asks for",
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="grade N times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=4, help="gradings at once")
    add_json(parser)


def grade(arguments: argparse.Namespace) -> int:
    """Exit 0 when all were graded, 3 when one stayed ungraded."""
    from trialyard.run.grading import grade_tasks

    def show(path: Path, verdict: Verdict) -> None:
        if arguments.json:
            print_json(verdict.to_json())
        else:
            _print(path, verdict)

    verdicts = asyncio.run(
        grade_tasks(
            arguments.tasks,
            arguments.solution,
            runs=arguments.runs,
            seed=arguments.seed,
            jobs=arguments.jobs,
            show=show,
        )
    )
    return EXIT_UNGRADED if any(v.status == "ungraded" for v in verdicts) else 0


def _print(path: Path, verdict: Verdict) -> None:
    reward = "ungraded" if verdict.reward is None else f"{verdict.reward:.3f}"
    print(f"{path}: reward {reward}, passed {verdict.passed}, fault {verdict.fault}")
    for check in verdict.checks:
        print(f"  {check.name} ({check.kind}): {check.score} {check.evidence}")
    for finding in verdict.tampering:
        print(f"  tampering {finding.kind}: {finding.path} {finding.evidence}")
    if verdict.reason:
        print(f"  {verdict.reason}")
