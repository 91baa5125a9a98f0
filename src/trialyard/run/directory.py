"""A run directory: where one experiment keeps everything it was and did.

``config.resolved.toml events.jsonl summary.json report.html ledger.sqlite blobs/
trajectories/ model/ boxes/``. One live process at a time holds it, by a file lock.
"""

import fcntl
import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trialyard.core.durable import replace_file
from trialyard.core.errors import ConfigError, NotFoundError
from trialyard.run.config import RunConfig, parse_config, to_toml


class RunDirectory:
    """Paths and small files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config_file = root / "config.resolved.toml"
        self.events_file = root / "events.jsonl"
        self.summary_file = root / "summary.json"
        self.ledger_file = root / "ledger.sqlite"
        self.blobs = root / "blobs"
        self.trajectories = root / "trajectories"
        self.model = root / "model"
        self.boxes = root / "boxes"

    @classmethod
    def create(cls, root: Path, config: RunConfig) -> "RunDirectory":
        """A new run. Raises `ConfigError` when the directory already holds one."""
        directory = cls(root)
        if directory.config_file.exists():
            raise ConfigError(
                f"{root} already holds a run; continue it with 'trialyard resume {root}', "
                "or choose another --out"
            )
        try:
            root.mkdir(parents=True, exist_ok=True)
            replace_file(directory.config_file, to_toml(config).encode())
        except OSError as error:
            raise ConfigError(f"cannot create the run directory {root}: {error}") from error
        return directory

    @classmethod
    def open(cls, root: Path) -> tuple["RunDirectory", RunConfig]:
        """An existing run and its configuration. Raises `NotFoundError`."""
        directory = cls(root)
        if not directory.config_file.is_file():
            raise NotFoundError(f"no run at {root} (no {directory.config_file.name} there)")
        tree = tomllib.loads(directory.config_file.read_text("utf-8"))
        return directory, parse_config(tree, str(directory.config_file))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; released by the kernel when the process ends."""
        with (self.root / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"another process is working on {self.root}") from None
            yield

    def write_summary(self, summary: dict[str, Any]) -> None:
        replace_file(self.summary_file, (json.dumps(summary, indent=2) + "\n").encode())
