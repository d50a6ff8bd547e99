"""The SQLite file of a cluster's catalog: its tables, its version, whose it is."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pulsar_ray.errors import (
    BrokerPersistenceError,
    CatalogMissing,
    CorruptData,
    ServiceUnitNotReady,
    UnsupportedFormatVersion,
)
from pulsar_ray.journal.objects import RowChange
from pulsar_ray.ledger.disk import SYSTEM_DISK

_SCHEMA = """
CREATE TABLE IF NOT EXISTS namespace (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS topic (name TEXT PRIMARY KEY, partitions INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS partition (
    name TEXT PRIMARY KEY, number INTEGER UNIQUE NOT NULL, topic TEXT NOT NULL,
    partition_index INTEGER NOT NULL,
    store_id TEXT NOT NULL, has_ledger INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS partition_topic ON partition (topic);
CREATE TABLE IF NOT EXISTS last_number (one INTEGER PRIMARY KEY CHECK (one = 1), value INTEGER NOT NULL);
INSERT OR IGNORE INTO last_number VALUES (1, 0);
CREATE TABLE IF NOT EXISTS cluster (one INTEGER PRIMARY KEY CHECK (one = 1), cluster_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS generation (
    place INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, first_number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS store (store_id TEXT PRIMARY KEY, host TEXT NOT NULL, path TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS absent_store (store_id TEXT PRIMARY KEY, since_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS drained_store (store_id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS inheritance (
    partition TEXT NOT NULL, subscription TEXT NOT NULL, properties TEXT NOT NULL,
    PRIMARY KEY (partition, subscription));
CREATE TABLE IF NOT EXISTS expected_stores (one INTEGER PRIMARY KEY CHECK (one = 1), value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS tenant (
    name TEXT PRIMARY KEY, admin_roles TEXT NOT NULL DEFAULT '[]',
    allowed_clusters TEXT NOT NULL DEFAULT '[]');
CREATE TABLE IF NOT EXISTS policy (
    subject TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (subject, name));
CREATE TABLE IF NOT EXISTS policy_version (subject TEXT PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS last_version (one INTEGER PRIMARY KEY CHECK (one = 1), value INTEGER NOT NULL);
INSERT OR IGNORE INTO last_version VALUES (1, 0);
CREATE TABLE IF NOT EXISTS change_log (
    partition TEXT PRIMARY KEY, is_dirty INTEGER NOT NULL DEFAULT 0,
    ledger_id INTEGER NOT NULL DEFAULT -1, entry_id INTEGER NOT NULL DEFAULT -1);
CREATE TABLE IF NOT EXISTS last_change (
    type TEXT NOT NULL, subject TEXT NOT NULL, version INTEGER NOT NULL, is_deleted INTEGER NOT NULL,
    PRIMARY KEY (type, subject));
CREATE TABLE IF NOT EXISTS schema_version (
    topic TEXT NOT NULL, version INTEGER NOT NULL, type TEXT NOT NULL, text TEXT NOT NULL,
    properties TEXT NOT NULL, digest TEXT NOT NULL, registered_by TEXT NOT NULL,
    registered_ms INTEGER NOT NULL, change_version INTEGER NOT NULL, PRIMARY KEY (topic, version));
CREATE TABLE IF NOT EXISTS decided (
    one INTEGER PRIMARY KEY CHECK (one = 1), url TEXT NOT NULL, epoch INTEGER NOT NULL,
    number INTEGER NOT NULL);
"""
PLACE_TABLE = "decided"
"""How far decisions are in this file, which is none of them."""
_COUNTED = """
CREATE TEMP TABLE store_count (store_id TEXT PRIMARY KEY, partitions INTEGER NOT NULL);
INSERT INTO store_count SELECT store_id, COUNT(*) FROM main.partition GROUP BY store_id;
CREATE TEMP TRIGGER count_more AFTER INSERT ON main.partition BEGIN
    INSERT INTO store_count VALUES (NEW.store_id, 1) ON CONFLICT DO UPDATE SET partitions = partitions + 1;
END;
CREATE TEMP TRIGGER count_less AFTER DELETE ON main.partition BEGIN
    UPDATE store_count SET partitions = partitions - 1 WHERE store_id = OLD.store_id;
END;
CREATE TEMP TRIGGER count_moved AFTER UPDATE OF store_id ON main.partition BEGIN
    UPDATE store_count SET partitions = partitions - 1 WHERE store_id = OLD.store_id;
    INSERT INTO store_count VALUES (NEW.store_id, 1) ON CONFLICT DO UPDATE SET partitions = partitions + 1;
END;
"""
"""Counts the partitions of each store, which every new topic asks for.

To count them anew took 1.7 ms with 6,000. The table is the connection's alone, and never stored."""
CATALOG_VERSION = 3
"""1 (of version 0.1, which left it 0) named no cluster, 2 knew no policies.

A build that knows none would delete what policies keep: it refuses the file.
"""
BESIDE_SQLITE = ("-wal", "-shm", "-journal")


_NO_CHANGES = ("SELECT", "PRAGMA", "BEGIN", "COMMIT", "ROLLBACK")


class CatalogIdentity(NamedTuple):
    """The cluster of a catalog, and the generations it was made from, itself last.

    Both are empty for a catalog of version 0.1.
    """

    cluster_id: str
    generations: tuple[str, ...]


class Recorder(Protocol):
    """Decides changes, in order, before anybody is told of them (ADR 0140)."""

    def check(self, rows: tuple[RowChange, ...]) -> None:
        """Raise why these changes cannot be decided now, which undoes them."""

    def record(self, rows: tuple[RowChange, ...]) -> None:
        """Take changes that were made."""


class CatalogFile:
    """One connection for several threads: a statement at a time, and none after `close`.

    With a recorder it works on a copy of the file, which SQLite keeps in memory and temporary files. The
    recorder is given the rows of each change, and puts them into the file.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._recorder: Recorder | None = None
        self._noted: dict[tuple[str, int], None] = {}
        with self._storing():
            # Never one that is made by opening it.
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
            )

    @classmethod
    def open(cls, path: Path, recorder: Recorder | None = None) -> CatalogFile:
        """Open the file that is there, with all its tables.

        Raises CatalogMissing, CorruptData, UnsupportedFormatVersion, BrokerPersistenceError.
        """
        if not path.is_file():
            raise CatalogMissing(f"{path} is not there")
        try:
            file = cls(path)
            with file._storing():
                assert file._connection is not None
                check_tables(file._connection)
            ((version,),) = file.execute("PRAGMA user_version")
            if version > CATALOG_VERSION:
                raise UnsupportedFormatVersion(
                    f"{path} has format version {version}, this build uses {CATALOG_VERSION}"
                )
            file.execute("PRAGMA journal_mode=WAL")
            file.execute("PRAGMA synchronous=FULL")
            # A row that a statement replaces is deleted, also for triggers.
            file.execute("PRAGMA recursive_triggers=ON")
            file.execute("PRAGMA temp_store=MEMORY")
            file.executescript(_SCHEMA)
            if version == 2:
                file.execute(f"PRAGMA user_version={CATALOG_VERSION}")
            if recorder is not None:
                with file._storing():
                    file._work_on_copy(recorder)
            file.executescript(_COUNTED)
        except sqlite3.DatabaseError as error:
            raise _not_ours(path, error) from None
        return file

    def _work_on_copy(self, recorder: Recorder) -> None:
        assert self._connection is not None
        copy = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._connection.backup(copy)
        self._connection.close()
        self._connection = copy
        copy.create_function("noted", 2, self._note)
        copy.execute("PRAGMA recursive_triggers=ON")  # rows that are replaced count too
        for table, columns in tables_in(copy).items():
            differs = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in columns)
            for name, event, call in (
                ("made", "INSERT", f"noted('{table}', NEW.rowid)"),
                ("gone", "DELETE", f"noted('{table}', OLD.rowid)"),
                ("changed", "UPDATE", f"noted('{table}', OLD.rowid), noted('{table}', NEW.rowid)"),
            ):
                condition = f"WHEN {differs}" if event == "UPDATE" else ""
                copy.execute(
                    f"CREATE TRIGGER {name}_{table} AFTER {event} ON {table} {condition} "
                    f"BEGIN SELECT {call}; END"
                )
        self._recorder = recorder

    def _note(self, table: str, row_id: int) -> None:
        self._noted[table, row_id] = None

    def _take_changes(self) -> tuple[RowChange, ...]:
        assert self._connection is not None
        noted, self._noted = self._noted, {}
        return tuple(_row_change(self._connection, table, row_id) for table, row_id in noted)

    def execute(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[Any]:
        """Raises BrokerPersistenceError when the disk does not take or give it, ServiceUnitNotReady.

        With a recorder also what that raises.
        """
        with self._lock, self._storing():
            if self._connection is None:
                raise ServiceUnitNotReady("the controller is stopping")
            if self._recorder is None or self._connection.in_transaction or sql.startswith(_NO_CHANGES):
                return self._connection.execute(sql, arguments).fetchall()
            with self.transaction():
                return self._connection.execute(sql, arguments).fetchall()

    def executescript(self, sql: str) -> None:
        """Raises BrokerPersistenceError."""
        with self._lock, self._storing():
            if self._connection is not None:
                self._connection.executescript(sql)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements inside together, or none of them.

        A transaction inside another is part of that one.
        """
        with self._lock:
            if self._connection is not None and self._connection.in_transaction:
                yield
                return
            self.execute("BEGIN IMMEDIATE")
            changes: tuple[RowChange, ...] = ()
            try:
                yield
                if self._recorder is not None and (changes := self._take_changes()):
                    self._recorder.check(changes)
                self.execute("COMMIT")
            except BaseException:
                self._noted.clear()
                # A full disk may have ended the transaction already.
                if self._connection is not None and self._connection.in_transaction:
                    self.execute("ROLLBACK")
                raise
            if self._recorder is not None and changes:
                self._recorder.record(changes)

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise BrokerPersistenceError(
                f"{self._path} cannot be used ({error}): see to the disk of the data directory"
            ) from None

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def __del__(self) -> None:
        """Close a catalog that was refused.

        From Python 3.13 on `sqlite3` warns when it has to do that.
        """
        self.close()


def make_file(path: Path) -> None:
    """Make the file of a catalog without a row, for this user alone.

    Raises OSError, BrokerPersistenceError.
    """
    os.close(SYSTEM_DISK.open(path, os.O_WRONLY | os.O_CREAT))
    try:
        with contextlib.closing(sqlite3.connect(path)) as file:
            file.executescript(_SCHEMA)
    except sqlite3.OperationalError as error:
        raise BrokerPersistenceError(f"{path} cannot be made ({error}): see to its disk") from None


def check_tables(connection: sqlite3.Connection) -> None:
    """Raise DatabaseError for a file that SQLite takes, and that is no catalog.

    One that was cut to nothing has no tables, and would be taken for a catalog without topics.
    """
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'partition'").fetchall():
        raise sqlite3.DatabaseError("it has no table of partitions")


def _not_ours(path: Path, error: sqlite3.DatabaseError) -> CorruptData:
    reason = (
        f"no SQLite file of ours ({error}); move it away, and make it anew with "
        "`pulsar-ray start --rebuild-catalog`"
    )
    return CorruptData(str(path), 0, reason)


def tables_in(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Return the columns of each table that decisions are about."""
    names = [
        row[0]
        for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    return {
        name: tuple(row[1] for row in connection.execute(f"PRAGMA table_info({name})"))
        for name in names
        if name != PLACE_TABLE and not name.startswith("sqlite_")
    }


def _row_change(connection: sqlite3.Connection, table: str, row_id: int) -> RowChange:
    cursor = connection.execute(f"SELECT * FROM {table} WHERE rowid = ?", (row_id,))  # noqa: S608 - a table's name
    row = cursor.fetchone()
    names = [column[0] for column in cursor.description]
    return RowChange(table, row_id, None if row is None else dict(zip(names, row, strict=True)))


def read_catalog_identity(path: Path) -> CatalogIdentity | None:
    """Whose catalog lies there, without changing it; None if there is none. Raises CorruptData, OSError."""
    if not path.is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as file:
            tables = {row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            check_tables(file)
            if "cluster" not in tables:
                return CatalogIdentity("", ())
            clusters = file.execute("SELECT cluster_id FROM cluster").fetchall()
            generations = file.execute("SELECT id FROM generation ORDER BY place").fetchall()
    except sqlite3.OperationalError as error:
        raise BrokerPersistenceError(f"{path} cannot be read ({error}): see to its disk and rights") from None
    except sqlite3.DatabaseError as error:
        raise _not_ours(path, error) from None
    return CatalogIdentity(clusters[0][0] if clusters else "", tuple(row[0] for row in generations))
