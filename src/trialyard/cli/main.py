"""The ``trialyard`` command.

Exit codes: 0 done; 1 an error of trialyard or its machine; 2 bad input (the message
says what to change); 3 ungraded; 130 interrupted. ``sandbox run`` without ``--json``
exits as its command did.
"""

import argparse
import sys
from collections.abc import Sequence

from trialyard import __version__
from trialyard.cli import bench, doctor, evaluate, grade, report, rollout, sandbox, tasks, train
from trialyard.core.errors import TrialyardError, UserError

EXIT_ERROR, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130

COMMANDS = (doctor, train, evaluate, report, rollout, grade, tasks, sandbox, bench)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="trialyard",
        description="The yard in which language-model agents learn by large-scale trial and error.",
        epilog="exit codes: 0 done, 1 error, 2 bad input, 3 ungraded, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"trialyard {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.handler(arguments)
    except UserError as error:
        print(f"trialyard: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except TrialyardError as error:
        print(f"trialyard: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("trialyard: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_ERROR
    return code


if __name__ == "__main__":
    sys.exit(main())
