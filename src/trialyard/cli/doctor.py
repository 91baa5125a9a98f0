"""``trialyard doctor``: what this machine can do, and how to mend what it cannot."""

import argparse
import asyncio
import textwrap
from dataclasses import asdict

from trialyard.cli.command import Commands, add_command, add_json, print_json

_WIDTH = 100
_INDENT = " " * 5


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "doctor",
        "check that this machine can isolate, by starting real sandboxes",
        examples="  trialyard doctor\n  trialyard doctor --json\n",
        handler=doctor,
    )
    parser.add_argument(
        "--allow-vulnerable-runtime",
        action="store_true",
        help="start boxes of an OCI runtime with known escapes too",
    )
    add_json(parser)


def doctor(arguments: argparse.Namespace) -> int:
    """Exit 0 only when the default sandbox is safe here; otherwise 2."""
    from trialyard.sandboxes.doctor import examine

    findings = asyncio.run(examine(allow_vulnerable_runtime=arguments.allow_vulnerable_runtime))
    safe = all(finding.ok for finding in findings if finding.required)
    if arguments.json:
        print_json({"safe": safe, "findings": [asdict(finding) for finding in findings]})
        return 0 if safe else 2
    name_width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = "ok  " if finding.ok else ("FAIL" if finding.required else "note")
        print(f"{mark} {finding.name:{name_width}}  {finding.detail}")
        if not finding.ok and finding.cure:
            print(_indented(f"cure: {finding.cure}"))
    print("boxes are safe here" if safe else "boxes are NOT safe here: mend what says FAIL")
    return 0 if safe else 2


def _indented(text: str) -> str:
    """Wrapped between words alone, so that commands can be copied."""
    return textwrap.fill(
        text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
