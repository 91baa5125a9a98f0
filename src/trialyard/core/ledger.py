"""The ledger: the one durable table of what happened (DESIGN 4.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

TrajectoryState = Literal["stored", "admitted", "consumed", "dropped"]


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """Index entry of one stored trajectory."""

    id: str
    group: str
    member: int
    task_id: str
    task_hash: str
    segment: str
    offset: int
    oldest_version: int | None
    reward: float | None
    fault: str
    state: TrajectoryState = "stored"
    consumed_step: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A durable point of the run: everything up to and including `step`."""

    step: int
    weight_version: int
    state_digest: str


class Ledger(Protocol):
    """Durable state of one run. A call that returned is durable.

    Consumption commits together with the checkpoint of its step: `checkpoint` marks
    the trajectories consumed up to `step` in the same transaction, and `rollback`
    returns whatever was consumed after the last checkpoint to ``stored``.
    """

    def record_trajectories(self, rows: Sequence[TrajectoryRow]) -> None:
        """Index stored trajectories. Recording an id again changes nothing."""

    def checkpoint(
        self, row: CheckpointRow, *, consumed: Sequence[tuple[str, int]], dropped: Sequence[str]
    ) -> None:
        """Commit a checkpoint with (trajectory id, step) consumed since the last one."""

    def last_checkpoint(self) -> CheckpointRow | None:
        """The newest checkpoint, if any."""

    def trajectories(self, state: TrajectoryState | None = None) -> list[TrajectoryRow]:
        """Index entries in the order in which they were recorded."""

    def close(self) -> None:
        """Flush and close. Idempotent."""


class TrajectoryIndex(Protocol):
    """What the trajectory store needs of a ledger."""

    def record_trajectories(self, rows: Sequence[TrajectoryRow]) -> None:
        """Index stored trajectories. Recording an id again changes nothing."""

    def find_trajectories(self, ids: Sequence[str]) -> dict[str, TrajectoryRow]:
        """Rows of those ids that are recorded."""

    def trajectories(self, state: TrajectoryState | None = None) -> list[TrajectoryRow]:
        """Index entries in the order in which they were recorded."""
