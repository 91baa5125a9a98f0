"""``trialyard bench``: run one file of ``benchmarks/`` and print what it measured."""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import trialyard
from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.core.errors import NotFoundError, UserError


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "bench",
        "run a benchmark, with its comparison, and say what was met",
        examples="  trialyard bench sandbox\n  trialyard bench density --boxes 10000\n"
        "  trialyard bench all --json\n",
        handler=bench,
    )
    parser.add_argument("name", metavar="NAME", help="a file of benchmarks/, or all")
    parser.add_argument("--boxes", type=int, metavar="N", help="how many boxes (density)")
    add_json(parser)


def bench(arguments: argparse.Namespace) -> int:
    """Exit 0 when it ran, whatever was met."""
    if arguments.boxes is not None:
        if arguments.boxes < 1:
            raise UserError(f"--boxes {arguments.boxes}: must be at least 1")
        os.environ["TRIALYARD_BENCH_BOXES"] = str(arguments.boxes)
    directory = benchmarks_directory()
    known = sorted(path.stem for path in directory.glob("[a-z]*.py"))
    if arguments.name != "all" and arguments.name not in known:
        raise NotFoundError(f"no benchmark {arguments.name!r}; known: {', '.join(known)}")
    for name in known if arguments.name == "all" else [arguments.name]:
        outcome = _load(directory / f"{name}.py").run()
        if arguments.json:
            print_json(outcome)
        else:
            _print(outcome)
    return 0


def benchmarks_directory() -> Path:
    """The repository's folder, from here or from the checkout that is installed."""
    candidates = [Path("benchmarks"), Path(trialyard.__file__).parents[2] / "benchmarks"]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise NotFoundError("no benchmarks/ folder: run this in a checkout of trialyard")


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmarks.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise NotFoundError(f"{path} is not a Python file")
    if str(path.parents[1].resolve()) not in sys.path:  # benchmarks import each other
        sys.path.append(str(path.parents[1].resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _print(outcome: dict[str, Any]) -> None:
    print(f"{outcome['benchmark']} on {outcome['machine']}")
    for title in ("figures", "against"):
        for name, value in outcome[title].items():
            print(f"  {title:8} {name:48} {value}")
    for target in outcome["targets"]:
        mark = "met" if target["met"] else "NOT MET"
        print(
            f"  target   {target['name']:48} {target['value']} {target['op']} "
            f"{target['target']}: {mark}"
        )
