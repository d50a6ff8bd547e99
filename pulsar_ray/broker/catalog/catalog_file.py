"""The SQLite file of a cluster's catalog: its tables, its version, whose it is."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pulsar_ray.errors import (
    BrokerPersistenceError,
    CatalogMissing,
    CorruptData,
    ServiceUnitNotReady,
    UnsupportedFormatVersion,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS namespace (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS topic (name TEXT PRIMARY KEY, partitions INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS partition (
    name TEXT PRIMARY KEY, number INTEGER UNIQUE NOT NULL, topic TEXT NOT NULL,
    partition_index INTEGER NOT NULL,
    store_id TEXT NOT NULL, has_ledger INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS last_number (one INTEGER PRIMARY KEY CHECK (one = 1), value INTEGER NOT NULL);
INSERT OR IGNORE INTO last_number VALUES (1, 0);
CREATE TABLE IF NOT EXISTS cluster (one INTEGER PRIMARY KEY CHECK (one = 1), cluster_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS generation (
    place INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, first_number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS store (store_id TEXT PRIMARY KEY, host TEXT NOT NULL, path TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS absent_store (store_id TEXT PRIMARY KEY, since_ms INTEGER NOT NULL);
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
"""
CATALOG_VERSION = 3
"""1 (of version 0.1, which left it 0) named no cluster, 2 knew no policies.

A build that knows none would delete what policies keep: it refuses the file.
"""
BESIDE_SQLITE = ("-wal", "-shm", "-journal")


class CatalogIdentity(NamedTuple):
    """The cluster of a catalog, and the generations it was made from, itself last.

    Both are empty for a catalog of version 0.1.
    """

    cluster_id: str
    generations: tuple[str, ...]


class CatalogFile:
    """One connection for several threads: a statement at a time, and none after `close`."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._path = path
        self._connection: sqlite3.Connection | None = None
        with self._storing():
            # Never one that is made by opening it.
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
            )

    @classmethod
    def open(cls, path: Path) -> CatalogFile:
        """Open the file that is there, with all its tables.

        Raises CatalogMissing, CorruptData, UnsupportedFormatVersion.
        """
        if not path.is_file():
            raise CatalogMissing(f"{path} is not there")
        try:
            file = cls(path)
            ((version,),) = file.execute("PRAGMA user_version")
            if version > CATALOG_VERSION:
                raise UnsupportedFormatVersion(
                    f"{path} has format version {version}, this build uses {CATALOG_VERSION}"
                )
            file.execute("PRAGMA journal_mode=WAL")
            file.execute("PRAGMA synchronous=FULL")
            file.executescript(_SCHEMA)
            if version == 2:
                file.execute(f"PRAGMA user_version={CATALOG_VERSION}")
        except sqlite3.DatabaseError as error:
            reason = (
                f"no SQLite file of ours ({error}); move it away, and make it anew with "
                "`pulsar-ray start --rebuild-catalog`"
            )
            raise CorruptData(str(path), 0, reason) from None
        return file

    def execute(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[Any]:
        """Raises BrokerPersistenceError when the disk does not take or give it, ServiceUnitNotReady."""
        with self._lock, self._storing():
            if self._connection is None:
                raise ServiceUnitNotReady("the controller is stopping")
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
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                # A full disk may have ended the transaction already.
                if self._connection is not None and self._connection.in_transaction:
                    self.execute("ROLLBACK")
                raise

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


def read_catalog_identity(path: Path) -> CatalogIdentity | None:
    """Whose catalog lies there, without changing it; None if there is none. Raises CorruptData, OSError."""
    if not path.is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as file:
            tables = {row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "cluster" not in tables:
                return CatalogIdentity("", ())
            clusters = file.execute("SELECT cluster_id FROM cluster").fetchall()
            generations = file.execute("SELECT id FROM generation ORDER BY place").fetchall()
    except sqlite3.OperationalError as error:
        raise BrokerPersistenceError(f"{path} cannot be read ({error}): see to its disk and rights") from None
    except sqlite3.DatabaseError as error:
        raise CorruptData(
            str(path),
            0,
            f"no SQLite file of ours ({error}); move it away, and make it anew with "
            "`pulsar-ray start --rebuild-catalog`",
        ) from None
    return CatalogIdentity(clusters[0][0] if clusters else "", tuple(row[0] for row in generations))
