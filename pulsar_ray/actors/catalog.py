"""Which topics there are: the controller's SQLite view, rebuilt from the ledgers if lost."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_ray.errors import (
    BrokerPersistenceError,
    CorruptData,
    NotAllowedError,
    ServiceUnitNotReady,
    TopicNotFound,
)
from pulsar_ray.model.topic_name import TopicName

_SCHEMA = """
CREATE TABLE IF NOT EXISTS namespace (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS topic (name TEXT PRIMARY KEY, partitions INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS partition (
    name TEXT PRIMARY KEY, number INTEGER UNIQUE NOT NULL, topic TEXT NOT NULL,
    partition_index INTEGER NOT NULL,
    store_id TEXT NOT NULL, has_ledger INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS last_number (one INTEGER PRIMARY KEY CHECK (one = 1), value INTEGER NOT NULL);
INSERT OR IGNORE INTO last_number VALUES (1, 0);
"""
BUILT_IN_NAMESPACES = ("public/default", "pulsar/system")


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition; `number` is unique in the cluster and stands in every ledger id."""

    name: str
    number: int
    topic: str
    partition_index: int
    store_id: str
    has_ledger: bool


class _Database:
    """One connection for several threads: a statement at a time, and none once it is closed."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._path = path
        with self._storing():
            self._connection: sqlite3.Connection | None = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False
            )

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
        """What is executed inside is committed at the end, or none of it."""
        with self._lock:
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


class Catalog:
    """Topics, partitions and their numbers. Every change is committed before the call returns."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = _Database(path)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            reason = f"no SQLite file of ours ({error}); move it away, it is rebuilt from the ledgers"
            raise CorruptData(str(path), 0, reason) from None
        for name in BUILT_IN_NAMESPACES:
            self._db.execute("INSERT OR IGNORE INTO namespace VALUES (?)", (name,))

    def restore(self, rows: Sequence[PartitionRow], prepared: Collection[int] = ()) -> None:
        """Take back what the ledger directories say; the partitions with these numbers were not added yet."""
        for row in rows:
            self._db.execute("UPDATE last_number SET value = MAX(value, ?)", (row.number,))
            if row.number in prepared:
                continue
            name = TopicName.parse(row.topic)
            self._db.execute(
                "INSERT OR IGNORE INTO namespace VALUES (?)", (f"{name.tenant}/{name.namespace}",)
            )
            count = max(row.partition_index + 1, self.partition_count(row.topic) or 0)
            self._db.execute("INSERT OR REPLACE INTO topic VALUES (?, ?)", (row.topic, count))
        for row in rows:
            if self.partition_count(row.topic) is not None:
                self._db.execute(
                    "INSERT OR REPLACE INTO partition VALUES (?, ?, ?, ?, ?, 1)",
                    (row.name, row.number, row.topic, row.partition_index, row.store_id),
                )

    def partition_count(self, topic: str) -> int | None:
        """0 for a topic without partitions, None for one that does not exist."""
        rows = self._db.execute("SELECT partitions FROM topic WHERE name = ?", (topic,))
        return int(rows[0][0]) if rows else None

    def partitions(self, topic: str) -> list[PartitionRow]:
        """The partitions of a topic by index; one row with index -1 for a topic that has none."""
        count = self.partition_count(topic)
        return [row for row in self.all_partitions(topic) if count is None or row.partition_index < count]

    def all_partitions(self, topic: str) -> list[PartitionRow]:
        """As `partitions`, with those that were prepared and are not added yet."""
        rows = self._db.execute(
            "SELECT name, number, topic, partition_index, store_id, has_ledger FROM partition "
            "WHERE topic = ? "
            "ORDER BY partition_index",
            (topic,),
        )
        return [_partition_row(row) for row in rows]

    def partition(self, name: str) -> PartitionRow | None:
        """A partition (or unpartitioned topic) by its own full name."""
        rows = self._db.execute(
            "SELECT name, number, topic, partition_index, store_id, has_ledger FROM partition WHERE name = ?",
            (name,),
        )
        return _partition_row(rows[0]) if rows else None

    def create(self, topic: TopicName, partitions: int, stores: Sequence[str]) -> list[PartitionRow]:
        """Create a topic; its partitions get their numbers, for ever, and take turns in `stores`.

        0 partitions is a topic without. Raises NotAllowedError if it exists, TopicNotFound for a missing
        namespace.
        """
        self.check_namespace(topic)
        if self.partition_count(topic.full) is not None:
            raise NotAllowedError(f"the topic {topic.full} already exists")
        with self._db.transaction():
            self._db.execute("INSERT INTO topic VALUES (?, ?)", (topic.full, partitions))
            self._insert(topic, range(partitions) if partitions else range(-1, 0), stores)
        return self.partitions(topic.full)

    def _insert(self, topic: TopicName, indexes: Iterable[int], stores: Sequence[str]) -> None:
        for turn, index in enumerate(indexes):
            name = topic.partition(index).full if index >= 0 else topic.full
            other = self.partition(name)
            if other is not None:
                raise NotAllowedError(
                    f"{topic.full} cannot have partition {index}: there is a topic {other.topic}; "
                    "delete that first, or take another name"
                )
            self._db.execute("UPDATE last_number SET value = value + 1")
            self._db.execute(
                "INSERT INTO partition SELECT ?, value, ?, ?, ?, 0 FROM last_number",
                (name, topic.full, index, stores[turn % len(stores)]),
            )

    def prepare_partitions(
        self, topic: TopicName, partitions: int, stores: Sequence[str]
    ) -> list[PartitionRow]:
        """What a partitioned topic lacks of so many partitions, made so far that it can be added.

        Nobody is told of it before `add_partitions`; rows that an earlier attempt made are taken as they are.
        """
        count = self.partition_count(topic.full) or 0
        known = {row.partition_index for row in self.all_partitions(topic.full)}
        with self._db.transaction():
            self._insert(topic, [i for i in range(count, partitions) if i not in known], stores)
        return [row for row in self.all_partitions(topic.full) if count <= row.partition_index < partitions]

    def add_partitions(self, topic: str, partitions: int) -> None:
        """A topic has at least so many partitions from now on, all of which were prepared."""
        self._db.execute(
            "UPDATE topic SET partitions = MAX(partitions, ?) WHERE name = ?", (partitions, topic)
        )

    def check_namespace(self, topic: TopicName) -> None:
        """Raise TopicNotFound if the topic's namespace does not exist."""
        namespace = f"{topic.tenant}/{topic.namespace}"
        if not self._db.execute("SELECT 1 FROM namespace WHERE name = ?", (namespace,)):
            raise TopicNotFound(f"namespace {namespace!r} of {topic.full} does not exist; use public/default")

    def opened(self, name: str) -> None:
        """The partition's ledger directory exists from now on: a missing one is a loss, never made anew."""
        self._db.execute("UPDATE partition SET has_ledger = 1 WHERE name = ? AND has_ledger = 0", (name,))

    def delete(self, topic: str) -> list[PartitionRow]:
        """Forget a topic; its rows as they were. Raises TopicNotFound. Its numbers are not used again."""
        rows = self.all_partitions(topic)
        if not rows:
            raise TopicNotFound(f"the topic {topic} does not exist")
        with self._db.transaction():
            self._db.execute("DELETE FROM partition WHERE topic = ?", (topic,))
            self._db.execute("DELETE FROM topic WHERE name = ?", (topic,))
        return rows

    def topics(self, namespace: str) -> list[tuple[str, int]]:
        """(full name, number of partitions or 0) of a namespace, by name."""
        rows = self._db.execute("SELECT name, partitions FROM topic ORDER BY name")
        return [(n, p) for n, p in rows if n.split("://", 1)[1].startswith(namespace + "/")]

    def topics_of(self, namespace: str) -> list[tuple[str, int]]:
        """As `topics`. Raises TopicNotFound if the namespace does not exist."""
        if not self._db.execute("SELECT 1 FROM namespace WHERE name = ?", (namespace,)):
            raise TopicNotFound(f"namespace {namespace!r} does not exist; use public/default")
        return self.topics(namespace)

    def partitions_per_store(self) -> dict[str, int]:
        """How many partitions each store holds."""
        return dict(self._db.execute("SELECT store_id, COUNT(*) FROM partition GROUP BY store_id"))

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _partition_row(row: tuple[str, int, str, int, str, int]) -> PartitionRow:
    name, number, topic, index, store_id, has_ledger = row
    return PartitionRow(name, number, topic, index, store_id, bool(has_ledger))
