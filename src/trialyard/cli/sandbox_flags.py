"""The flags that say which box: its image, limits, environment and backend."""

import argparse
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import ValidationError

from trialyard.cli.sandbox_files import pair
from trialyard.core.errors import UserError
from trialyard.core.sandbox import Limits, Sandbox

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_box_flags(parser: argparse.ArgumentParser) -> None:
    """For every action that makes one box."""
    parser.add_argument("--image", default="host")
    parser.add_argument("--memory", default="512M", metavar="SIZE")
    parser.add_argument("--cpus", type=float, default=1.0)
    parser.add_argument("--pids", type=int, default=64)
    parser.add_argument("--disk", default="256M", metavar="SIZE")
    parser.add_argument("--inodes", type=int, default=16384)
    parser.add_argument("--open-files", type=int, default=1024)
    parser.add_argument("--output-bytes", default="1M", metavar="SIZE")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S")
    parser.add_argument("--idle-timeout", type=float, metavar="S")
    parser.add_argument("--cpu-time", type=float, metavar="S")
    parser.add_argument("--network", default="none", metavar="none|allow-list:HOST:PORT,...")
    parser.add_argument("--bandwidth", metavar="SIZE", help="bytes a second, where network is on")
    parser.add_argument(
        "--best-effort",
        action="store_true",
        help="go on without limits that this machine cannot enforce, and name them in the result",
    )
    parser.add_argument("--env", action="append", default=[], metavar="K=V")
    parser.add_argument("--workdir", default="/work", metavar="D")
    parser.add_argument(
        "--user",
        default="user",
        metavar="root|NAME|UID",
        help="whom commands run as (default: an ordinary user); anybody else than that user "
        "needs a box with a root of its own inside, who is nobody on the host",
    )
    parser.add_argument("--backend", default="namespace", choices=("namespace", "oci"))
    parser.add_argument("--runtime", default="runc", help="of --backend oci: a name or a path")
    parser.add_argument("--allow-vulnerable-runtime", action="store_true")


def environment(arguments: argparse.Namespace) -> dict[str, str] | None:
    """``--env``. Raises `UserError`."""
    return dict(pair(text, "=", "--env") for text in arguments.env) or None


def command_user(arguments: argparse.Namespace) -> str | None:
    """Whom commands run as; None for the ordinary user of an ordinary box."""
    from trialyard.sandboxes.system_files import BOX_UID, USER

    user: str = arguments.user
    return None if user in (USER, str(BOX_UID)) else user


@asynccontextmanager
async def open_box(arguments: argparse.Namespace, limits: Limits) -> AsyncIterator[Sandbox]:
    """One box as the flags say, in a pool of its own, for the length of the ``async with``."""
    from trialyard.run.wiring.boxes import open_pool

    async with (
        open_pool(
            max_boxes=1,
            warm=0,
            backend=arguments.backend,
            runtime=arguments.runtime,
            allow_vulnerable_runtime=arguments.allow_vulnerable_runtime,
        ) as pool,
        pool.acquire(
            image=arguments.image,
            limits=limits,
            owner="cli",
            workdir=arguments.workdir,
            user="user" if command_user(arguments) is None else "root",
        ) as sandbox,
    ):
        yield sandbox


def limits_of(arguments: argparse.Namespace) -> Limits:
    """Raises `UserError` naming the limit or the flag."""
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
