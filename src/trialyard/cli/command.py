"""How a command is declared: its parser with examples, and JSON or text on stdout."""

import argparse
import json
from collections.abc import Callable
from typing import Any

Handler = Callable[[argparse.Namespace], int]
Commands = Any
"""argparse keeps the type of its sub-parser collection private."""


def add_command(
    commands: Commands, name: str, summary: str, *, examples: str = "", handler: Handler
) -> argparse.ArgumentParser:
    """One sub-command with a summary, examples in its help, and what it runs."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(handler=handler)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """The flag of every command that a program may read."""
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")


def print_json(value: Any) -> None:
    """One JSON object on one line, flushed, so that a reader can follow."""
    print(json.dumps(value), flush=True)
