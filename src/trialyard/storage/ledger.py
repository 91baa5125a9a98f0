"""The ledger in SQL: trajectories' index, checkpoints, weight versions (DESIGN 4.5).

Invariants:

- a trajectory id is recorded once, whoever repeats the call;
- it is consumed at most once, and only in the transaction of a checkpoint: what was
  used after the last checkpoint is ``stored`` again when the run is opened anew;
- checkpoints go forward, and repeating the last one changes nothing;
- a call that returned survives the death of the process, a checkpoint and a weight
  version also a power loss.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, TextClause, delete, insert, select, text, update

from trialyard.core.errors import StoreError
from trialyard.core.ledger import CheckpointRow, TrajectoryRow, TrajectoryState
from trialyard.core.weights import WeightVersion
from trialyard.storage import tables
from trialyard.storage.database import Database
from trialyard.storage.migrations import MIGRATIONS, check_schema, migrate

_T = tables.trajectories
_CHUNK = 500
_RECORD = text(
    "INSERT INTO trajectories (id, group_id, member, task_id, task_hash, segment, batch, "
    "oldest_version, reward, fault, state, consumed_step) VALUES (:id, :group_id, :member, "
    ":task_id, :task_hash, :segment, :batch, :oldest_version, :reward, :fault, :state, "
    ":consumed_step) ON CONFLICT (id) DO NOTHING"
)
_CONSUME = text(
    "UPDATE trajectories SET state = 'consumed', consumed_step = :step "
    "WHERE id = :id AND state IN ('stored', 'admitted')"
)
_DROP = text(
    "UPDATE trajectories SET state = 'dropped' "
    "WHERE id = :id AND state IN ('stored', 'admitted', 'dropped')"
)


class SqlLedger:
    """`Ledger`, `TrajectoryIndex` and `WeightTable` in SQLite (a path) or PostgreSQL (a URL).

    A read-only ledger can be opened while a run writes. Use it as a context manager or
    call `close`.
    """

    def __init__(self, location: str | Path, *, read_only: bool = False) -> None:
        self._database = Database(location, read_only=read_only)
        try:
            with self._database.transaction(durable=True) as connection:
                if not read_only:
                    migrate(connection)
                elif check_schema(connection) < len(MIGRATIONS):
                    raise StoreError(
                        f"ledger {location} has an older schema; open it once for writing "
                        "(`trialyard resume`) to bring it up to date"
                    )
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> "SqlLedger":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    # Trajectories

    def record_trajectories(self, rows: Sequence[TrajectoryRow]) -> None:
        if not rows:
            return
        with self._database.transaction() as connection:
            connection.execute(_RECORD, [_values(row) for row in rows])

    def trajectories(self, state: TrajectoryState | None = None) -> list[TrajectoryRow]:
        query = select(_T).order_by(_T.c.seq)
        if state is not None:
            query = query.where(_T.c.state == state)
        with self._database.transaction() as connection:
            return [_trajectory_row(found) for found in connection.execute(query)]

    def find_trajectories(self, ids: Sequence[str]) -> dict[str, TrajectoryRow]:
        """Rows of those ids that are recorded."""
        with self._database.transaction() as connection:
            return {row.id: row for row in _find(connection, ids)}

    # Checkpoints

    def checkpoint(
        self, row: CheckpointRow, *, consumed: Sequence[tuple[str, int]], dropped: Sequence[str]
    ) -> None:
        with self._database.transaction(durable=True) as connection:
            last = _last_checkpoint(connection)
            if last == row:
                _check_repeated(connection, row, consumed, dropped)
                return
            _check_steps(row, last, consumed)
            connection.execute(
                insert(tables.checkpoints).values(
                    step=row.step,
                    weight_version=row.weight_version,
                    state_digest=row.state_digest,
                )
            )
            marks = [{"id": id_, "step": step} for id_, step in consumed]
            _mark(connection, _CONSUME, marks, "consumed")
            _mark(connection, _DROP, [{"id": id_} for id_ in dropped], "dropped")

    def last_checkpoint(self) -> CheckpointRow | None:
        with self._database.transaction() as connection:
            return _last_checkpoint(connection)

    # Weights

    def add_weights(self, version: WeightVersion) -> None:
        """Record a version durably. Raises `StoreError` if its number is taken."""
        values = {"version": version.version, "digest": version.digest, "step": version.step}
        with self._database.transaction(durable=True) as connection:
            connection.execute(insert(tables.weights).values(**values, pinned=False))

    def weights(self) -> list[WeightVersion]:
        """Recorded versions, oldest first."""
        query = select(tables.weights).order_by(tables.weights.c.version)
        with self._database.transaction() as connection:
            found = connection.execute(query).all()
        return [WeightVersion(row.version, row.digest, row.step) for row in found]

    def remove_weights(self, versions: Sequence[int]) -> None:
        """Forget versions; unknown ones are fine."""
        with self._database.transaction(durable=True) as connection:
            chosen = tables.weights.c.version.in_(list(versions))
            connection.execute(delete(tables.weights).where(chosen))

    def pin_weights(self, version: int, *, pinned: bool) -> None:
        """Protect a version from pruning, or stop protecting it."""
        chosen = tables.weights.c.version == version
        with self._database.transaction(durable=True) as connection:
            connection.execute(update(tables.weights).where(chosen).values(pinned=pinned))

    def pinned_weights(self) -> frozenset[int]:
        """Versions that pruning leaves alone."""
        query = select(tables.weights.c.version).where(tables.weights.c.pinned)
        with self._database.transaction() as connection:
            return frozenset(connection.execute(query).scalars())


def _values(row: TrajectoryRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in TrajectoryRow.__slots__}
    values["group_id"] = values.pop("group")
    values["batch"] = values.pop("offset")
    return values


def _trajectory_row(found: Row[Any]) -> TrajectoryRow:
    return TrajectoryRow(
        id=found.id,
        group=found.group_id,
        member=found.member,
        task_id=found.task_id,
        task_hash=found.task_hash,
        segment=found.segment,
        offset=found.batch,
        oldest_version=found.oldest_version,
        reward=found.reward,
        fault=found.fault,
        state=found.state,
        consumed_step=found.consumed_step,
    )


def _find(connection: Connection, ids: Sequence[str]) -> Iterator[TrajectoryRow]:
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        values = {f"id{number}": id_ for number, id_ in enumerate(part)}
        for found in connection.execute(_find_query(len(part)), values):
            yield _trajectory_row(found)


@lru_cache(maxsize=64)
def _find_query(size: int) -> TextClause:
    """Rows of `size` ids. A text of fixed size, because an expanding ``IN`` costs thrice."""
    names = ", ".join(f":id{number}" for number in range(size))
    return text(f"SELECT * FROM trajectories WHERE id IN ({names})")


def _last_checkpoint(connection: Connection) -> CheckpointRow | None:
    query = select(tables.checkpoints).order_by(tables.checkpoints.c.step.desc()).limit(1)
    found = connection.execute(query).first()
    if found is None:
        return None
    return CheckpointRow(found.step, found.weight_version, found.state_digest)


def _check_steps(
    row: CheckpointRow, last: CheckpointRow | None, consumed: Sequence[tuple[str, int]]
) -> None:
    after = -1 if last is None else last.step
    if row.step <= after:
        raise StoreError(
            f"checkpoint of step {row.step} refused: step {after} is already committed with "
            "other content; continue from the last checkpoint"
        )
    for id_, step in consumed:
        if not after < step <= row.step:
            raise StoreError(
                f"checkpoint of step {row.step} refused: {id_} is said to be consumed at step "
                f"{step}, outside ({after}, {row.step}]"
            )


def _mark(
    connection: Connection, statement: Any, marks: Sequence[dict[str, Any]], verb: str
) -> None:
    """Change the state of every trajectory named, or refuse them all."""
    for mark in marks:
        if connection.execute(statement, mark).rowcount == 1:
            continue
        row = next(_find(connection, [mark["id"]]), None)
        reason = "it was never recorded"
        if row is not None:
            at = f" at step {row.consumed_step}" if row.consumed_step is not None else ""
            reason = f"it is already {row.state}{at}"
        raise StoreError(
            f"trajectory {mark['id']} cannot be {verb}: {reason}. A trajectory is used once; "
            "nothing of this checkpoint was kept"
        )


def _check_repeated(
    connection: Connection,
    row: CheckpointRow,
    consumed: Sequence[tuple[str, int]],
    dropped: Sequence[str],
) -> None:
    """The same checkpoint again (a lost reply) is fine if it says the same."""
    found = {t.id: t for t in _find(connection, [*(id_ for id_, _ in consumed), *dropped])}
    same = all(id_ in found and found[id_].consumed_step == step for id_, step in consumed)
    if not same or any(id_ not in found or found[id_].state != "dropped" for id_ in dropped):
        raise StoreError(
            f"checkpoint of step {row.step} is already committed with other trajectories; "
            "continue from the last checkpoint"
        )
