"""The ledger's schema, one numbered step after the other.

A step is SQL that SQLite and PostgreSQL both take; ``{serial}`` stands for a key that
counts up by itself. A released step is never edited: a change is a new step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, inspect, text

from trialyard.core.errors import StoreError


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema; `version` counts from 1 without gaps."""

    version: int
    title: str
    statements: tuple[str, ...]


MIGRATIONS = (
    Migration(
        1,
        "trajectories, checkpoints and weights",
        (
            """CREATE TABLE trajectories (
                seq {serial},
                id TEXT NOT NULL UNIQUE,
                group_id TEXT NOT NULL,
                member INTEGER NOT NULL,
                task_id TEXT NOT NULL,
                task_hash TEXT NOT NULL,
                segment TEXT NOT NULL,
                batch BIGINT NOT NULL,
                oldest_version BIGINT,
                reward DOUBLE PRECISION,
                fault TEXT NOT NULL,
                state TEXT NOT NULL
                    CHECK (state IN ('stored', 'admitted', 'consumed', 'dropped')),
                consumed_step BIGINT,
                CHECK ((state = 'consumed') = (consumed_step IS NOT NULL))
            )""",
            "CREATE INDEX trajectories_by_state ON trajectories (state, seq)",
            """CREATE TABLE checkpoints (
                step BIGINT NOT NULL PRIMARY KEY,
                weight_version BIGINT NOT NULL,
                state_digest TEXT NOT NULL
            )""",
            """CREATE TABLE weights (
                version BIGINT NOT NULL PRIMARY KEY,
                digest TEXT NOT NULL,
                step BIGINT NOT NULL,
                pinned BOOLEAN NOT NULL
            )""",
        ),
    ),
)

_SERIAL = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}


def schema_version(connection: Connection) -> int:
    """Number of the newest step that the database has; 0 for an empty one."""
    if not inspect(connection).has_table("schema_versions"):
        return 0
    found = connection.execute(text("SELECT max(version) FROM schema_versions")).scalar()
    return int(found or 0)


def migrate(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the schema up to the newest step, inside the caller's transaction."""
    current = check_schema(connection, migrations)
    if current == 0:
        connection.execute(
            text(
                "CREATE TABLE IF NOT EXISTS schema_versions "
                "(version INTEGER NOT NULL PRIMARY KEY, title TEXT NOT NULL)"
            )
        )
    serial = _SERIAL[connection.dialect.name]
    for migration in migrations[current:]:
        for statement in migration.statements:
            connection.execute(text(statement.replace("{serial}", serial)))
        connection.execute(
            text("INSERT INTO schema_versions (version, title) VALUES (:version, :title)"),
            {"version": migration.version, "title": migration.title},
        )


def check_schema(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Current schema version. Raises `StoreError` when it is newer than this program."""
    current = schema_version(connection)
    if current > len(migrations):
        raise StoreError(
            f"the ledger has schema version {current}, this trialyard knows {len(migrations)}; "
            "use a newer trialyard to open it"
        )
    return current
