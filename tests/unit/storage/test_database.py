"""The SQLite side of the ledger: one writer, readers beside it, reopening, schema steps."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import inspect

from trialyard.core.errors import ConfigError, NotFoundError, StoreError
from trialyard.core.ledger import CheckpointRow, TrajectoryRow
from trialyard.core.weights import WeightVersion
from trialyard.storage import tables
from trialyard.storage.database import Database, has_wal_reset_bug
from trialyard.storage.ledger import SqlLedger
from trialyard.storage.migrations import MIGRATIONS, Migration, migrate, schema_version

HOLD = """
import sys
from trialyard.core.ledger import TrajectoryRow
from trialyard.storage.ledger import SqlLedger
ledger = SqlLedger(sys.argv[1])
row = TrajectoryRow("kept", "g", 0, "t/1", "h", "000001", 0, 3, 0.5, "none")
ledger.record_trajectories([row])
print("held", flush=True)
sys.stdin.read()
"""


def _row(id: str) -> TrajectoryRow:
    return TrajectoryRow(id, "g", 0, "t/1", "h", "000001", 0, 3, 0.5, "none")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "ledger.sqlite"


def test_everything_is_there_after_reopening(path: Path) -> None:
    with SqlLedger(path) as ledger:
        ledger.record_trajectories([_row("a"), _row("b")])
        ledger.checkpoint(CheckpointRow(1, 1, "s"), consumed=[("a", 1)], dropped=[])
        ledger.add_weights(WeightVersion(1, "d", 1))
    with SqlLedger(path) as ledger:
        assert [row.state for row in ledger.trajectories()] == ["consumed", "stored"]
        assert ledger.last_checkpoint() == CheckpointRow(1, 1, "s")
        assert ledger.weights() == [WeightVersion(1, "d", 1)]


def test_a_second_writer_is_refused_while_the_first_lives(path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=rf"in use by the live process {child.pid}"):
            SqlLedger(path)
        child.send_signal(signal.SIGKILL)
        child.wait()
        SqlLedger(path).close()
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def test_a_second_writer_in_the_same_process_is_refused_until_close(path: Path) -> None:
    first = SqlLedger(path)
    with pytest.raises(StoreError, match=str(os.getpid())):
        SqlLedger(path)
    first.close()
    SqlLedger(path).close()


def test_a_reader_follows_a_live_writer_and_cannot_write(path: Path) -> None:
    with SqlLedger(path) as writer, SqlLedger(path, read_only=True) as reader:
        writer.record_trajectories([_row("a")])
        assert [row.id for row in reader.trajectories()] == ["a"]
        with pytest.raises(StoreError, match=r"readonly|read-only"):
            reader.record_trajectories([_row("b")])
        writer.record_trajectories([_row("b")])
        assert [row.id for row in reader.trajectories()] == ["a", "b"]


def test_a_reader_of_nothing_says_so(path: Path) -> None:
    with pytest.raises(NotFoundError, match="no ledger at"):
        SqlLedger(path, read_only=True)
    assert not path.exists()


def test_a_closed_ledger_refuses_calls(path: Path) -> None:
    ledger = SqlLedger(path)
    ledger.close()
    with pytest.raises(StoreError, match="closed"):
        ledger.trajectories()


def test_many_threads_share_one_ledger(path: Path) -> None:
    problems: list[BaseException] = []

    def record(first: int) -> None:
        try:
            for n in range(20):
                ledger.record_trajectories([_row(f"{first}-{n}"), _row("shared")])
                ledger.find_trajectories([f"{first}-{n}"])
        except BaseException as error:
            problems.append(error)

    with SqlLedger(path) as ledger:
        threads = [threading.Thread(target=record, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert len(ledger.trajectories()) == 81


def test_wal_with_normal_commits_and_full_ones_for_checkpoints(path: Path) -> None:
    SqlLedger(path).close()
    database = Database(path)
    levels = {}
    for durable in (False, True, False):
        with database.transaction(durable=durable) as connection:
            levels[durable] = connection.exec_driver_sql("PRAGMA synchronous").scalar()
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    database.close()
    assert levels == {False: 1, True: 2}


def test_a_file_that_is_no_database_is_a_store_error(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match=r"cannot be used as a ledger"):
        SqlLedger(path)
    with pytest.raises(StoreError, match="not a database"):
        SqlLedger(path, read_only=True)
    path.unlink()
    SqlLedger(path).close()


def test_other_databases_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'mysql' is not supported.*postgresql://"):
        SqlLedger("mysql://somewhere/db")


@pytest.mark.parametrize(
    ("version", "affected"),
    [("3.6.23", False), ("3.7.0", True), ("3.40.1", True), ("3.51.2", True), ("3.51.3", False)],
)
def test_versions_with_the_wal_reset_bug(version: str, affected: bool) -> None:
    assert has_wal_reset_bug(version) is affected


def test_the_tables_are_what_the_migrations_make(path: Path) -> None:
    SqlLedger(path).close()
    database = Database(path)
    with database.transaction() as connection:
        found = inspect(connection)
        made = {
            name: {column["name"]: column["nullable"] for column in found.get_columns(name)}
            for name in found.get_table_names()
        }
        assert schema_version(connection) == len(MIGRATIONS)
    database.close()
    made["trajectories"]["seq"] = False  # SQLite calls its row key nullable
    declared = {
        name: {column.name: bool(column.nullable) for column in table.columns}
        for name, table in tables.metadata.tables.items()
    }
    assert made.pop("schema_versions") == {"version": False, "title": False}
    assert made == declared


def test_a_later_migration_is_applied_once_and_keeps_the_rows(path: Path) -> None:
    with SqlLedger(path) as ledger:
        ledger.record_trajectories([_row("a")])
    later = (
        *MIGRATIONS,
        Migration(
            len(MIGRATIONS) + 1, "a note", ("ALTER TABLE trajectories ADD COLUMN note TEXT",)
        ),
    )
    database = Database(path)
    for _ in range(2):
        with database.transaction() as connection:
            migrate(connection, later)
            assert schema_version(connection) == len(later)
    with database.transaction() as connection:
        assert connection.exec_driver_sql("SELECT id, note FROM trajectories").all() == [
            ("a", None)
        ]
    database.close()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="use a newer trialyard"):
            SqlLedger(path, read_only=read_only)


def test_a_failing_migration_leaves_the_old_schema(path: Path) -> None:
    SqlLedger(path).close()
    broken = (*MIGRATIONS, Migration(99, "broken", ("CREATE TABLE extra (id TEXT)", "NONSENSE")))
    database = Database(path)
    with pytest.raises(StoreError), database.transaction() as connection:
        migrate(connection, broken)
    with database.transaction() as connection:
        assert schema_version(connection) == len(MIGRATIONS)
        assert not inspect(connection).has_table("extra")
    database.close()


def test_an_older_schema_is_not_read_half(path: Path) -> None:
    SqlLedger(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM schema_versions")
    connection.close()
    with pytest.raises(StoreError, match="older schema"):
        SqlLedger(path, read_only=True)


def test_a_reader_finds_what_a_killed_writer_committed(path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    assert path.with_name(path.name + "-wal").stat().st_size > 0
    with SqlLedger(path, read_only=True) as reader:
        assert reader.trajectories() == [_row("kept")]
    with SqlLedger(path) as ledger:
        assert ledger.trajectories() == [_row("kept")]
