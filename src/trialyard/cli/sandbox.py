"""``trialyard sandbox``: one command in a fresh, isolated, limited box (``run``), and more."""

import argparse
import asyncio
import sys
from pathlib import Path

from trialyard.cli import sandbox_log, sandbox_shell, sandbox_table
from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.cli.sandbox_files import (
    Download,
    download,
    give,
    pair,
    prepare_download,
    upload,
)
from trialyard.cli.sandbox_flags import (
    add_box_flags,
    command_user,
    environment,
    limits_of,
    open_box,
)
from trialyard.cli.sandbox_output import exit_code, infrastructure_fault, stream_output
from trialyard.core.errors import SandboxError, UserError
from trialyard.core.sandbox import ExecResult, Limits

EXAMPLES = """\
  trialyard sandbox run -- python3 -c 'print(1)'
  trialyard sandbox run --memory 128M --timeout 2 --json -- sh -c 'cat /etc/passwd'
  trialyard sandbox run --upload script.sh:/work/s.sh --download /out:results -- sh /work/s.sh
"""


def register(commands: Commands) -> None:
    parser = add_command(commands, "sandbox", "run commands in sandboxes", handler=_none)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    run = add_command(
        actions, "run", "run one command in a fresh box", examples=EXAMPLES, handler=run_command
    )
    add_box_flags(run)
    run.add_argument("--stdin", metavar="FILE|-", help="standard input (default: empty)")
    run.add_argument("--upload", action="append", default=[], metavar="SRC:DST")
    run.add_argument("--download", action="append", default=[], metavar="SRC:DST")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...")
    add_json(run)
    sandbox_shell.register(actions)
    sandbox_table.register(actions)
    sandbox_log.register(actions)


def _none(_: argparse.Namespace) -> int:
    raise UserError("sandbox: name an action: run, shell, list, reap, log")


def run_command(arguments: argparse.Namespace) -> int:
    """With ``--json`` 0 whenever a result was obtained; otherwise the command's own code."""
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise UserError("sandbox run: no command; put it after --, e.g. -- python3 -c 'print(1)'")
    limits = limits_of(arguments)
    try:
        result, downloads = asyncio.run(_run(arguments, argv, limits))
    except SandboxError as error:
        return infrastructure_fault(error)
    if arguments.json:
        taken = {"downloads": [each.to_json() for each in downloads]} if downloads else {}
        print_json(result.to_json() | taken)
        return 0
    for each in downloads:
        if each.error:
            print(f"trialyard: --download {each.source}: {each.error}", file=sys.stderr)
    return exit_code(result)


async def _run(
    arguments: argparse.Namespace, argv: list[str], limits: Limits
) -> tuple[ExecResult, list[Download]]:
    stdin = _stdin(arguments.stdin)
    env = environment(arguments)
    uploads = [pair(text, ":", "--upload") for text in arguments.upload]
    wanted = [pair(text, ":", "--download") for text in arguments.download]
    async with open_box(arguments, limits) as sandbox:
        for source, target in uploads:
            await upload(sandbox, source, target)
        for source, _ in wanted:
            await prepare_download(sandbox, source)
        user = command_user(arguments)
        if user is not None:
            await give(sandbox, user, [arguments.workdir, "/out", *dict(wanted)])
        result = await sandbox.run(
            argv,
            stdin=stdin,
            env=env,
            user=user,
            timeout_s=arguments.timeout,
            on_output=None if arguments.json else stream_output,
        )
        return result, [await download(sandbox, source, target) for source, target in wanted]


def _stdin(source: str | None) -> bytes:
    if source is None:
        return b""
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise UserError(f"--stdin {source}: {error.strerror}") from error
