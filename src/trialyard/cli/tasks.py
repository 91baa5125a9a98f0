"""``trialyard tasks``: generate, import, list and show tasks."""

import argparse
from pathlib import Path

from trialyard.cli.command import Commands, add_command, add_json, print_json
from trialyard.core.errors import UserError
from trialyard.core.task import Task
from trialyard.run.sources import GENERATORS, IMPORTERS, generate_tasks
from trialyard.tasks.directory import find_tasks, load_task, save_task

EXAMPLES = """\
  trialyard tasks generate list-functions tasks/list --count 100 --seed 1
  trialyard tasks import mbpp mbpp.jsonl tasks/mbpp
  trialyard tasks list tasks/mbpp
  trialyard tasks show tasks/mbpp/601
"""


def register(commands: Commands) -> None:
    parser = add_command(
        commands, "tasks", "generate, import and look at tasks", examples=EXAMPLES, handler=_none
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _register_generate(actions)
    _register_import(actions)
    action = add_command(actions, "list", "list the tasks below a folder", handler=list_tasks)
    action.add_argument("directory", type=Path, metavar="DIR")
    add_json(action)
    action = add_command(actions, "show", "show one task", handler=show)
    action.add_argument("task", type=Path, metavar="TASK")
    add_json(action)


def _register_generate(actions: Commands) -> None:
    action = add_command(actions, "generate", "make tasks from a generator", handler=generate)
    action.add_argument("generator", help=f"one of: {', '.join(GENERATORS)}")
    action.add_argument("dest", type=Path, metavar="DEST")
    action.add_argument("--count", type=int, default=10)
    action.add_argument("--seed", type=int, default=0)
    action.add_argument("--split", choices=("train", "valid", "test"), default="train")
    add_json(action)


def _register_import(actions: Commands) -> None:
    action = add_command(actions, "import", "import a data set as tasks", handler=import_tasks)
    action.add_argument("format", help=f"one of: {', '.join(IMPORTERS)}")
    action.add_argument("source", type=Path, metavar="SRC")
    action.add_argument("dest", type=Path, metavar="DEST")
    add_json(action)


def _none(_: argparse.Namespace) -> int:
    raise UserError("tasks: name an action: generate, import, list or show")


def generate(arguments: argparse.Namespace) -> int:
    tasks = generate_tasks(arguments.generator, arguments.seed, arguments.split, arguments.count)
    for task in tasks:
        save_task(task, arguments.dest / task.id.rpartition("/")[2])
    _say(arguments, {"generated": len(tasks), "dest": str(arguments.dest)})
    return 0


def import_tasks(arguments: argparse.Namespace) -> int:
    """Broken records are reported with their line; the others go on."""
    importer = IMPORTERS.get(arguments.format)
    if importer is None:
        raise UserError(f"unknown format {arguments.format!r}; known: {', '.join(IMPORTERS)}")
    result = importer(arguments.source, arguments.dest)
    for problem in result.problems:
        print(f"skipped {problem}") if not arguments.json else None
    _say(
        arguments,
        {"imported": result.imported, "skipped": len(result.problems), "dest": str(arguments.dest)},
    )
    return 0


def list_tasks(arguments: argparse.Namespace) -> int:
    paths = find_tasks(arguments.directory)
    if not paths:
        raise UserError(f"no task (folder with a task.toml) below {arguments.directory}")
    for path in paths:
        task = load_task(path)
        if arguments.json:
            print_json(_row(task, path))
        else:
            print(f"{path}\t{task.id}\t{task.spec.split}\t{task.spec.language or '-'}")
    return 0


def show(arguments: argparse.Namespace) -> int:
    task = load_task(arguments.task)
    if arguments.json:
        spec = task.spec.model_dump(mode="json")
        print_json({**_row(task, arguments.task), "spec": spec})
        return 0
    print(f"{task.id}  ({task.spec.split}, {task.hash[:12]})\n\n{task.spec.instruction}\n")
    for check in task.spec.checks:
        kind = "visible" if check.visible else "hidden"
        print(f"check {check.name}: {check.kind}, {kind}, weight {check.weight}")
    for name in ("environment", "tests", "solution"):
        print(f"{name}: {', '.join(sorted(getattr(task, name))) or 'nothing'}")
    return 0


def _row(task: Task, path: Path) -> dict[str, object]:
    return {"path": str(path), "id": task.id, "hash": task.hash, "split": task.spec.split}


def _say(arguments: argparse.Namespace, fields: dict[str, object]) -> None:
    if arguments.json:
        print_json(fields)
    else:
        print(", ".join(f"{key} {value}" for key, value in fields.items()))
