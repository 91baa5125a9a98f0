"""``trialyard doctor``: what this machine can do, and how to mend what it cannot."""

import argparse
import asyncio
from dataclasses import asdict

from trialyard.cli.command import Commands, add_command, add_json, print_json


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "doctor",
        "check that this machine can isolate, by starting a real sandbox",
        examples="  trialyard doctor\n  trialyard doctor --json\n",
        handler=doctor,
    )
    add_json(parser)


def doctor(arguments: argparse.Namespace) -> int:
    """Exit 0 only when the default sandbox is safe here; otherwise 2."""
    from trialyard.sandboxes.doctor import examine

    findings = asyncio.run(examine())
    safe = all(finding.ok for finding in findings if finding.required)
    if arguments.json:
        print_json({"safe": safe, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark = "ok  " if finding.ok else ("FAIL" if finding.required else "warn")
            print(f"{mark} {finding.name}: {finding.detail}")
            if not finding.ok and finding.cure:
                print(f"     cure: {finding.cure}")
    return 0 if safe else 2
