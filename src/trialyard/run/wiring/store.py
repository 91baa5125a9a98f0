"""A trajectory store apart from any training run."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trialyard.storage.ledger import SqlLedger
from trialyard.trajectories.store import TrajectoryStore


@contextmanager
def open_store(root: Path) -> Iterator[TrajectoryStore]:
    """A trajectory store with a ledger of its own below `root`."""
    root.mkdir(parents=True, exist_ok=True)
    with (
        SqlLedger(root / "ledger.sqlite") as ledger,
        closing(TrajectoryStore(root / "trajectories", ledger)) as store,
    ):
        yield store
