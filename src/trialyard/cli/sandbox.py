"""``trialyard sandbox``: one command in a fresh, isolated, limited box (``run``), and more."""

import argparse
import asyncio
import re
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from trialyard.cli import sandbox_log, sandbox_table
from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.cli.sandbox_files import Download, download, pair, prepare_download, upload
from trialyard.core.errors import SandboxError, UserError
from trialyard.core.sandbox import ExecResult, ExecStatus, Limits

EXAMPLES = """\
  trialyard sandbox run -- python3 -c 'print(1)'
  trialyard sandbox run --memory 128M --timeout 2 --json -- sh -c 'cat /etc/passwd'
  trialyard sandbox run --upload script.sh:/work/s.sh --download /out:results -- sh /work/s.sh
"""
EXIT_CODES = {ExecStatus.TIMEOUT: 124, ExecStatus.OOM: 137, ExecStatus.OUTPUT_LIMIT: 123}
EXIT_INFRASTRUCTURE = 125
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def register(commands: Commands) -> None:
    parser = add_command(commands, "sandbox", "run commands in sandboxes", handler=_none)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    run = add_command(
        actions, "run", "run one command in a fresh box", examples=EXAMPLES, handler=run_command
    )
    run.add_argument("--image", default="host")
    run.add_argument("--memory", default="512M", metavar="SIZE")
    run.add_argument("--cpus", type=float, default=1.0)
    run.add_argument("--pids", type=int, default=64)
    run.add_argument("--disk", default="256M", metavar="SIZE")
    run.add_argument("--inodes", type=int, default=16384)
    run.add_argument("--open-files", type=int, default=1024)
    run.add_argument("--output-bytes", default="1M", metavar="SIZE")
    run.add_argument("--timeout", type=float, default=600.0, metavar="S")
    run.add_argument("--idle-timeout", type=float, metavar="S")
    run.add_argument("--cpu-time", type=float, metavar="S")
    run.add_argument("--network", default="none", metavar="none|allow-list:HOST:PORT,...")
    run.add_argument("--bandwidth", metavar="SIZE", help="bytes a second, where network is on")
    run.add_argument(
        "--best-effort",
        action="store_true",
        help="go on without limits that this machine cannot enforce, and name them in the result",
    )
    run.add_argument("--stdin", metavar="FILE|-", help="standard input (default: empty)")
    run.add_argument("--env", action="append", default=[], metavar="K=V")
    run.add_argument("--workdir", default="/work", metavar="D")
    run.add_argument("--upload", action="append", default=[], metavar="SRC:DST")
    run.add_argument("--download", action="append", default=[], metavar="SRC:DST")
    run.add_argument("--backend", default="namespace", choices=("namespace", "oci"))
    run.add_argument("--runtime", default="runc", help="of --backend oci: a name or a path")
    run.add_argument("--allow-vulnerable-runtime", action="store_true")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD...")
    add_json(run)
    sandbox_table.register(actions)
    sandbox_log.register(actions)


def _none(_: argparse.Namespace) -> int:
    raise UserError("sandbox: name an action: run, list, reap, log")


def run_command(arguments: argparse.Namespace) -> int:
    """With ``--json`` 0 whenever a result was obtained; otherwise the command's own code."""
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise UserError("sandbox run: no command; put it after --, e.g. -- python3 -c 'print(1)'")
    limits = _limits(arguments)
    try:
        result, downloads = asyncio.run(_run(arguments, argv, limits))
    except SandboxError as error:
        if isinstance(error, UserError):
            raise
        print(f"trialyard: {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_INFRASTRUCTURE
    if arguments.json:
        taken = {"downloads": [each.to_json() for each in downloads]} if downloads else {}
        print_json(result.to_json() | taken)
        return 0
    for each in downloads:
        if each.error:
            print(f"trialyard: --download {each.source}: {each.error}", file=sys.stderr)
    return _exit_code(result)


async def _run(
    arguments: argparse.Namespace, argv: list[str], limits: Limits
) -> tuple[ExecResult, list[Download]]:
    from trialyard.run.wiring.boxes import open_pool

    stdin = _stdin(arguments.stdin)
    environment = dict(pair(text, "=", "--env") for text in arguments.env)
    uploads = [pair(text, ":", "--upload") for text in arguments.upload]
    wanted = [pair(text, ":", "--download") for text in arguments.download]
    async with (
        open_pool(
            max_boxes=1,
            warm=0,
            backend=arguments.backend,
            runtime=arguments.runtime,
            allow_vulnerable_runtime=arguments.allow_vulnerable_runtime,
        ) as pool,
        pool.acquire(
            image=arguments.image, limits=limits, owner="cli", workdir=arguments.workdir
        ) as sandbox,
    ):
        for source, target in uploads:
            await upload(sandbox, source, target)
        for source, _ in wanted:
            await prepare_download(sandbox, source)
        result = await sandbox.run(
            argv,
            stdin=stdin,
            env=environment or None,
            timeout_s=arguments.timeout,
            on_output=None if arguments.json else _stream,
        )
        return result, [await download(sandbox, source, target) for source, target in wanted]


def _stream(name: Literal["stdout", "stderr"], data: bytes) -> None:
    stream = sys.stdout if name == "stdout" else sys.stderr
    stream.buffer.write(data)
    stream.buffer.flush()


def _stdin(source: str | None) -> bytes:
    if source is None:
        return b""
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise UserError(f"--stdin {source}: {error.strerror}") from error


def _limits(arguments: argparse.Namespace) -> Limits:
    values: dict[str, Any] = {
        "cpus": arguments.cpus,
        "cpu_s": arguments.cpu_time,
        "memory_bytes": parse_size(arguments.memory, "--memory"),
        "pids": arguments.pids,
        "disk_bytes": parse_size(arguments.disk, "--disk"),
        "inodes": arguments.inodes,
        "open_files": arguments.open_files,
        "output_bytes": parse_size(arguments.output_bytes, "--output-bytes"),
        "idle_s": arguments.idle_timeout,
        "wall_s": max(Limits.model_fields["wall_s"].default, arguments.timeout + 60),
        "network": arguments.network,
        "enforcement": "best-effort" if arguments.best_effort else "strict",
        "bandwidth_bytes_per_s": (
            parse_size(arguments.bandwidth, "--bandwidth") if arguments.bandwidth else None
        ),
    }
    try:
        return Limits(**values)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"limit {first['loc'][0]}: {message}") from None


def parse_size(text: str, flag: str) -> int:
    """``512M`` as bytes. Raises `UserError` naming the flag."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.I)
    if not match:
        raise UserError(f"{flag} {text!r}: write a size such as 512M or 1G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _exit_code(result: ExecResult) -> int:
    if result.status is ExecStatus.SIGNALED:
        return 128 + (result.signal or 0)
    if result.status is ExecStatus.EXITED:
        return result.exit_code or 0
    return EXIT_CODES.get(result.status, EXIT_INFRASTRUCTURE)
