"""Where tasks come from, by name: generators, importers, directories."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from trialyard.core.errors import ConfigError, NotFoundError
from trialyard.core.ids import derive_random
from trialyard.core.task import Split, Task
from trialyard.core.trajectory import Demonstration
from trialyard.run.config import TasksConfig
from trialyard.tasks.directory import find_tasks, load_task
from trialyard.tasks.generators import list_functions
from trialyard.tasks.generators.list_demonstrator import demonstrations
from trialyard.tasks.importers.mbpp import import_to_directory

Generate = Callable[[int, Split, int], list[Task]]

GENERATORS: dict[str, Generate] = {"list-functions": list_functions.generate}
DEMONSTRATORS: dict[str, Callable[[int, int], list[Demonstration]]] = {
    "list-functions": demonstrations
}
IMPORTERS = {"mbpp": import_to_directory}


def generate_tasks(generator: str, seed: int, split: Split, count: int) -> list[Task]:
    """Tasks of a generator. Raises `NotFoundError` for an unknown one."""
    if generator not in GENERATORS:
        known = ", ".join(GENERATORS)
        raise NotFoundError(f"unknown generator {generator!r}; known: {known}")
    return GENERATORS[generator](seed, split, count)


def generate_demonstrations(generator: str, seed: int, count: int) -> list[Demonstration]:
    """Demonstrations for supervised training, from training material only."""
    if generator not in DEMONSTRATORS:
        raise NotFoundError(f"generator {generator!r} has no demonstrator; set sft.steps = 0")
    return DEMONSTRATORS[generator](seed, count)


class TrainSequence:
    """Training tasks by index: epochs over a fixed list, each in an order of its own."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        wrong = [task.id for task in tasks if task.spec.split != "train"]
        if wrong or not tasks:
            raise ConfigError(
                f"training needs tasks with split 'train'; got {wrong[0] if wrong else 'none'}"
            )
        self._tasks = tasks
        self._order = lru_cache(maxsize=2)(
            lambda epoch: derive_random(seed, "epoch", epoch).sample(range(len(tasks)), len(tasks))
        )

    def __getitem__(self, index: int) -> Task:
        epoch, position = divmod(index, len(self._tasks))
        return self._tasks[self._order(epoch)[position]]


def load_splits(config: TasksConfig, seed: int) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks as the configuration says."""
    if not config.directory:
        return (
            generate_tasks(config.generator, seed, "train", config.train),
            generate_tasks(config.generator, seed, "test", config.held_out),
        )
    tasks = [load_task(path) for path in find_tasks(Path(config.directory))]
    train = [task for task in tasks if task.spec.split == "train"]
    held_out = [task for task in tasks if task.spec.split != "train"]
    if not train or not held_out:
        raise ConfigError(
            f"tasks.directory {config.directory}: found {len(train)} train and {len(held_out)} "
            "other tasks; both are needed (set split in task.toml)"
        )
    return train[: config.train], held_out[: config.held_out]
