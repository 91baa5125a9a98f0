"""The yard of one run: every part, already built, as the phases of a run see them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from trialyard.core.blobs import BlobStore
from trialyard.core.clock import Clock
from trialyard.core.events import EventSink
from trialyard.core.learner import Learner, TrainingSequence
from trialyard.core.ledger import Ledger
from trialyard.core.policy import TrainablePolicy
from trialyard.core.sandbox import SandboxPool
from trialyard.core.task import Task
from trialyard.core.trajectory import Trajectory
from trialyard.core.weights import WeightStore
from trialyard.rollout.rollout import Roller
from trialyard.run.config import RunConfig
from trialyard.run.directory import RunDirectory


class Trajectories(Protocol):
    """What a run needs of the trajectory store."""

    def append(self, trajectories: Sequence[Trajectory]) -> None:
        """Durable when it returns; an id that is known already changes nothing."""

    def load(self, ids: Sequence[str]) -> list[Trajectory]:
        """Stored trajectories in the order of `ids`."""


class TrainTasks(Protocol):
    """Training tasks by index: the same index always gives the same task."""

    def __getitem__(self, index: int) -> Task: ...


class MeteredPolicy(TrainablePolicy, Protocol):
    """A trainable policy that says how long it was busy."""

    @property
    def busy_s(self) -> float:
        """Seconds spent sampling so far."""


@dataclass(frozen=True)
class Yard:
    """Parts of one run. Built and torn down by `wiring.open_yard` only."""

    config: RunConfig
    directory: RunDirectory
    clock: Clock
    events: EventSink
    train_tasks: TrainTasks
    held_out: Sequence[Task]
    demonstrations: Sequence[TrainingSequence]
    policy: MeteredPolicy
    learner: Learner
    pool: SandboxPool
    roller: Roller
    trajectories: Trajectories
    ledger: Ledger
    blobs: BlobStore
    weights: WeightStore
    storage: ThreadPoolExecutor
    """The one thread that touches ledger, blobs, weights and trajectories."""
