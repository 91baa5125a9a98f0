"""Opens the ledger's database; all that is special to SQLite stands here.

SQLite runs in WAL mode with exactly one writing connection, which also does every
checkpoint; readers open the file read-only. An `flock` on ``FILE.lock`` (it goes with
its process, also at kill -9) holds that, because two writers can corrupt the file with
SQLite 3.7.0 to 3.51.2. Synchronous is NORMAL (a commit survives the death of the
process) and FULL for transactions asked to be durable (it survives a power loss).
SQLite must not lie on a network file system.
"""

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from trialyard.core.durable import make_directory, sync_directory
from trialyard.core.errors import ConfigError, NotFoundError, StoreError

_BUSY_TIMEOUT_S = 30.0


def has_wal_reset_bug(version: str = sqlite3.sqlite_version) -> bool:
    """Whether this SQLite can corrupt a WAL database that two connections write."""
    numbers = tuple(int(part) for part in version.split("."))
    return (3, 7, 0) <= numbers <= (3, 51, 2)


class Database:
    """One database, opened for reading or for writing; calls may come from any thread."""

    def __init__(self, location: str | Path, *, read_only: bool = False) -> None:
        self.name = str(location)
        self.read_only = read_only
        self._guard = threading.RLock()
        self._writer_lock: int | None = None
        self._closed = False
        self._synchronous = ""
        self._connection: Connection | None = None
        if "://" in self.name:
            if not self.name.startswith("postgresql"):
                raise ConfigError(
                    f"ledger {self.name.split('://')[0]!r} is not supported: give the path of an "
                    "SQLite file or a postgresql:// URL"
                )
            self._engine = create_engine(self.name)
            return
        path = Path(location)
        if not read_only:
            _create_parent(path)
            self._writer_lock = _lock_for_writing(path)
        try:
            self._engine = _sqlite_engine(path, read_only=read_only)
        except BaseException:
            self._release_lock()
            raise

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[Connection]:
        """One transaction: commits at the end of the block, rolls back on any error."""
        with self._guard:
            if self._closed:
                raise StoreError(f"ledger {self.name} is closed; open it again")
            try:
                with self._connected() as connection:
                    if connection.dialect.name == "sqlite":
                        self._set_synchronous(connection, "FULL" if durable else "NORMAL")
                    with connection.begin():
                        yield connection
            except (SQLAlchemyError, sqlite3.Error) as error:
                raise StoreError(
                    f"ledger {self.name}: {error.args[0] if error.args else error}; nothing of "
                    "this call was kept. Check that the disk has room and the file is whole"
                ) from error

    def _connected(self) -> contextlib.AbstractContextManager[Connection]:
        """A connection from the pool; SQLite has one that stays open."""
        if self._engine.dialect.name != "sqlite":
            return self._engine.connect()
        if self._connection is None:
            self._connection = self._engine.connect()
        return contextlib.nullcontext(self._connection)

    def _set_synchronous(self, connection: Connection, level: str) -> None:
        if level != self._synchronous:
            connection.connection.cursor().execute(f"PRAGMA synchronous={level}")
            self._synchronous = level

    def close(self) -> None:
        """Close the connection and give the lock up. Idempotent."""
        with self._guard:
            if not self._closed:
                self._closed = True
                if self._connection is not None:
                    self._connection.close()
                self._engine.dispose()
                self._release_lock()

    def _release_lock(self) -> None:
        if self._writer_lock is not None:
            os.close(self._writer_lock)
            self._writer_lock = None


def _create_parent(path: Path) -> None:
    try:
        make_directory(path.parent)
    except OSError as error:
        raise StoreError(f"ledger {path}: {error}") from error


def _lock_for_writing(path: Path) -> int:
    lock_path = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"ledger {path} cannot be locked: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreError(
            f"ledger {path} is in use by the live process {owner}: a run has one writer. Wait for "
            "it, stop it, or open the ledger read-only"
        ) from None
    except OSError as error:
        os.close(descriptor)
        danger = " and this SQLite can corrupt a file with two writers" * has_wal_reset_bug()
        raise StoreError(
            f"ledger {path} cannot be locked ({error}){danger}; keep it on a local file system"
        ) from error
    return descriptor


def _sqlite_engine(path: Path, *, read_only: bool) -> Engine:
    if read_only and not path.is_file():
        raise NotFoundError(f"there is no ledger at {path}")
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"

    def connect() -> sqlite3.Connection:
        # isolation_level None: the driver begins nothing by itself, `_begin` below does.
        return sqlite3.connect(
            uri,
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    if not read_only:
        try:
            with engine.connect() as connection:
                connection.connection.cursor().execute("PRAGMA journal_mode=WAL")
            sync_directory(path.parent)
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            engine.dispose()
            raise StoreError(f"{path} cannot be used as a ledger: {error}") from error
    return engine
