"""Which topics there are: the controller's SQLite file, one for a cluster (ADR 0026)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pulsar_ray.broker.catalog.administration.change_log_table import ChangeLogTable
from pulsar_ray.broker.catalog.administration.policy_table import PolicyTable
from pulsar_ray.broker.catalog.administration.tenants import Tenants
from pulsar_ray.broker.catalog.catalog_file import (
    BESIDE_SQLITE,
    CATALOG_VERSION,
    CatalogFile,
    CatalogIdentity,
    make_file,
)
from pulsar_ray.broker.catalog.decisions import Decisions
from pulsar_ray.broker.catalog.schemas.schema_table import SchemaTable
from pulsar_ray.errors import (
    BrokerPersistenceError,
    NotAllowedError,
    TopicNotFound,
)
from pulsar_ray.ledger.disk import SYSTEM_DISK
from pulsar_ray.model.topic_name import (
    NON_PERSISTENT,
    PERSISTENT,
    TopicName,
    heartbeat,
    is_change_log,
    system_change_log,
)

FOUNDED_NUMBERS = 1 << 31
"""A catalog that was founded grants numbers below this."""
REBUILT_NUMBERS = 1 << 21
"""One that was rebuilt grants so many, from one of the `REBUILT_RANGES` above."""
REBUILT_RANGES = FOUNDED_NUMBERS // REBUILT_NUMBERS - 1

Subscriptions = Mapping[str, Mapping[str, Mapping[str, str]]]
"""The properties of subscriptions, by partition and name."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition; `number` is unique in the cluster and stands in every ledger id."""

    name: str
    number: int
    topic: str
    partition_index: int
    store_id: str
    has_ledger: bool


class Catalog:
    """Topics, partitions and their numbers. Every change is committed before the call returns.

    `tenants`, `policies`, `change_logs` and `schemas` are further tables of the same file.
    """

    def __init__(self, path: Path, decisions: Decisions | None = None) -> None:
        """Open the one that is there. Raises CatalogMissing, CorruptData, UnsupportedFormatVersion.

        With `decisions` nobody may be told of a change before it is `settled`.
        """
        self._decisions = decisions
        self._db = CatalogFile.open(path, decisions)
        self.tenants = Tenants(self._db)
        self.policies = PolicyTable(self._db)
        self.change_logs = ChangeLogTable(self._db)
        self.schemas = SchemaTable(self._db)

    @classmethod
    def make(
        cls,
        path: Path,
        cluster_id: str,
        generation: str,
        first_number: int = 0,
        ancestors: Iterable[str] = (),
        restored: Sequence[PartitionRow] = (),
        prepared: Collection[int] = (),
        *,
        has_change_logs: bool = False,
    ) -> tuple[Catalog, list[PartitionRow]]:
        """Make a cluster's catalog, which appears whole or not at all.

        Returns the rows that `restore` left out.

        `has_change_logs`: the stores say that there are logs of changes, which are to be read. The caller has
        made sure that there is no catalog. Raises BrokerPersistenceError.
        """
        staged = path.with_name(f"{path.name}.new")
        try:
            for leftover in path.parent.glob(f"{staged.name}*"):
                leftover.unlink()
            for name in BESIDE_SQLITE:
                # Left by one that was lost: SQLite would put its changes into the new one.
                path.with_name(path.name + name).unlink(missing_ok=True)
            make_file(staged)
            catalog = cls(staged)
            catalog.begin_generation(cluster_id, generation, first_number, ancestors)
            left_out = catalog.restore(restored, prepared, has_change_logs=has_change_logs)
            # All of it is in the one file then.
            catalog._db.execute("PRAGMA journal_mode=DELETE")
            catalog.close()
            staged.rename(path)
            SYSTEM_DISK.fsync_dir(path.parent)
        except OSError as error:
            raise BrokerPersistenceError(f"{path} cannot be made ({error}): see to its disk") from None
        return cls(path), left_out

    async def settled(self, *partitions: str) -> None:
        """Wait until all changes are decided, or those of partitions.

        Without an object store they always are. Raises RemoteStoreUnavailable while that does not answer, and
        Moved once another controller decides.
        """
        if self._decisions is not None:
            await self._decisions.settled(partitions)

    @property
    def identity(self) -> CatalogIdentity:
        """Whose it is."""
        rows = self._db.execute("SELECT cluster_id FROM cluster")
        generations = self._db.execute("SELECT id FROM generation ORDER BY place")
        return CatalogIdentity(rows[0][0] if rows else "", tuple(row[0] for row in generations))

    def begin_generation(
        self, cluster_id: str, generation: str, first_number: int, ancestors: Iterable[str] = ()
    ) -> None:
        """From now on numbers are granted above `first_number`; nothing happens if it was begun before.

        `ancestors` are generations that stores know; this one is made from them too.
        """
        if generation in self.identity.generations:
            return
        with self._db.transaction():
            self._db.execute("INSERT OR IGNORE INTO cluster VALUES (1, ?)", (cluster_id,))
            for ancestor in ancestors:
                self._db.execute(
                    "INSERT OR IGNORE INTO generation (id, first_number) VALUES (?, 0)", (ancestor,)
                )
            self._db.execute(
                "INSERT INTO generation (id, first_number) VALUES (?, ?)", (generation, first_number)
            )
            self._db.execute("UPDATE last_number SET value = ?", (first_number,))
            self._db.execute(f"PRAGMA user_version={CATALOG_VERSION}")

    def adopt(self, cluster_id: str, generation: str) -> None:
        """Make a catalog of version 0.1 that of a cluster.

        It goes on granting numbers where it was.
        """
        self.begin_generation(cluster_id, generation, self.last_number)

    def succeed(self, generation: str) -> None:
        """Take the place of the catalog that this is a copy of.

        Numbers are granted on where that one was.
        """
        first = self.first_numbers()[-1:] or [0]
        self._db.execute("INSERT INTO generation (id, first_number) VALUES (?, ?)", (generation, *first))

    # --- numbers ----------------------------------------------------------------------------------

    @property
    def last_number(self) -> int:
        """The last that was granted."""
        return int(self._db.execute("SELECT value FROM last_number")[0][0])

    def _number_range(self) -> tuple[int, int]:
        """The numbers that may be granted are above the first and below the second."""
        rows = self._db.execute("SELECT first_number FROM generation ORDER BY place DESC LIMIT 1")
        first = int(rows[0][0]) if rows else 0
        return (first, FOUNDED_NUMBERS) if first < FOUNDED_NUMBERS else (first, first + REBUILT_NUMBERS)

    def first_numbers(self) -> list[int]:
        """Where the ranges begin that this catalog and those before it granted from."""
        return [row[0] for row in self._db.execute("SELECT first_number FROM generation ORDER BY place")]

    def skip_numbers(self, below: int) -> None:
        """Grant no number below this any more, if it is one of this catalog's own.

        Numbers of other catalogs are never granted anyway.
        """
        first, end = self._number_range()
        if first < below <= end:
            self._db.execute("UPDATE last_number SET value = MAX(value, ?)", (below - 1,))

    # --- stores -----------------------------------------------------------------------------------

    def remember_store(self, store_id: str, host: str, path: str) -> None:
        """Where a store was last."""
        if self.stores().get(store_id) != (host, path):
            self._db.execute("INSERT OR REPLACE INTO store VALUES (?, ?, ?)", (store_id, host, path))

    def stores(self) -> dict[str, tuple[str, str]]:
        """(host, path) of every store that was ever taken in, by its id."""
        rows = self._db.execute("SELECT store_id, host, path FROM store")
        return {store_id: (host, path) for store_id, host, path in rows}

    def note_absence(self, store_id: str, since_ms: int) -> None:
        """Keep since when a store is on no node, unless that is known."""
        self._db.execute("INSERT OR IGNORE INTO absent_store VALUES (?, ?)", (store_id, since_ms))

    def note_presence(self, store_id: str) -> None:
        """Keep that a store is on a node."""
        self._db.execute("DELETE FROM absent_store WHERE store_id = ?", (store_id,))

    def absences(self) -> dict[str, int]:
        """Return since when stores are on no node, in ms since 1970, by their ids."""
        rows = self._db.execute("SELECT store_id, since_ms FROM absent_store")
        return dict(rows)

    def drain_store(self, store_id: str, *, is_wanted: bool = True) -> None:
        """Keep whether a store is to become empty."""
        if is_wanted:
            self._db.execute("INSERT OR IGNORE INTO drained_store VALUES (?)", (store_id,))
        else:
            self._db.execute("DELETE FROM drained_store WHERE store_id = ?", (store_id,))

    def drained_stores(self) -> set[str]:
        """Return the ids of the stores that are to become empty."""
        return {row[0] for row in self._db.execute("SELECT store_id FROM drained_store")}

    @property
    def expected_stores(self) -> int:
        """The number of stores that the cluster is to have; 0 if nobody said."""
        rows = self._db.execute("SELECT value FROM expected_stores")
        return int(rows[0][0]) if rows else 0

    def expect_stores(self, count: int) -> None:
        """Keep how many stores the cluster is to have; 0 for no word about that."""
        self._db.execute("INSERT OR REPLACE INTO expected_stores VALUES (1, ?)", (count,))

    def numbers_in(self, store_id: str) -> set[int]:
        """The numbers of the partitions that a store holds."""
        rows = self._db.execute("SELECT number FROM partition WHERE store_id = ?", (store_id,))
        return {row[0] for row in rows}

    def names_in(self, store_id: str, most: int) -> list[str]:
        """The names of the first partitions that a store holds."""
        query = "SELECT name FROM partition WHERE store_id = ? ORDER BY name LIMIT ?"
        return [row[0] for row in self._db.execute(query, (store_id, most))]

    def forget_store(
        self, store_id: str, stores: Sequence[str], subscriptions: Subscriptions
    ) -> list[PartitionRow]:
        """Begin the partitions of a store that is lost for good in `stores`, empty.

        They get numbers that were never granted, and inherit `subscriptions`. The store and its heartbeat
        topic are forgotten. Returns the rows as they were. All of that is done, or nothing. Raises
        NotAllowedError if all numbers are granted.
        """
        own = heartbeat(store_id).full
        with self._db.transaction():
            rows = self._rows("store_id = ? ORDER BY name", store_id)
            for turn, row in enumerate(row for row in rows if row.topic != own):
                self._db.execute(
                    "UPDATE partition SET number = ?, store_id = ?, has_ledger = 0 WHERE name = ?",
                    (self._next_number(row.topic), stores[turn % len(stores)], row.name),
                )
                for name, properties in subscriptions.get(row.name, {}).items():
                    self._db.execute(
                        "INSERT OR REPLACE INTO inheritance VALUES (?, ?, ?)",
                        (row.name, name, json.dumps(properties)),
                    )
            self.drop_partition(own)
            self._db.execute("DELETE FROM store WHERE store_id = ?", (store_id,))
            self.drain_store(store_id, is_wanted=False)
            self.note_presence(store_id)
        return rows

    def move_partitions(self, stores: Mapping[int, str]) -> list[PartitionRow]:
        """Note in which stores partitions are by their numbers; return their rows as they were."""
        moved = []
        with self._db.transaction():
            for number, store_id in stores.items():
                moved += self._rows("number = ?", number)
                self._db.execute(
                    "UPDATE partition SET store_id = ?, has_ledger = 1 WHERE number = ?", (store_id, number)
                )
        return moved

    def move_partition(self, number: int, source: str, target: str) -> bool:
        """Note that a partition of `source` is in another store; whether it is there then.

        It may be repeated.
        """
        with self._db.transaction():
            self._db.execute(
                "UPDATE partition SET store_id = ? WHERE number = ? AND store_id = ?",
                (target, number, source),
            )
            row = self.numbered(number)
        return row is not None and row.store_id == target

    def move_unopened(self, store_id: str, stores: Sequence[str]) -> list[PartitionRow]:
        """Give a store's unopened partitions to others; return their rows as they were."""
        own = heartbeat(store_id).full
        with self._db.transaction():
            unopened = self._rows("store_id = ? AND has_ledger = 0 ORDER BY name", store_id)
            rows = [row for row in unopened if row.topic != own]
            for turn, row in enumerate(rows):
                change = "UPDATE partition SET store_id = ? WHERE name = ?"
                self._db.execute(change, (stores[turn % len(stores)], row.name))
        return rows

    def heirs(self) -> list[str]:
        """The names of the partitions that have still to be given subscriptions."""
        return [name for (name,) in self._db.execute("SELECT DISTINCT partition FROM inheritance")]

    def inheritance_of(self, partition: str) -> dict[str, dict[str, str]]:
        """The properties of the subscriptions that a partition has still to be given, by name."""
        rows = self._db.execute(
            "SELECT subscription, properties FROM inheritance WHERE partition = ?", (partition,)
        )
        return {name: json.loads(properties) for name, properties in rows}

    def settle_inheritance(self, partition: str) -> None:
        """Keep that a partition has been given its subscriptions."""
        self._db.execute("DELETE FROM inheritance WHERE partition = ?", (partition,))

    # --- topics -----------------------------------------------------------------------------------

    def restore(
        self,
        rows: Iterable[PartitionRow],
        prepared: Collection[int] = (),
        *,
        has_change_logs: bool = False,
    ) -> list[PartitionRow]:
        """Take back what the partition directories say; the result are those that stay out.

        These have a name, or a number, that another one has; the earlier in `rows` is taken. `prepared` are
        the numbers of those that were not added to their topics yet. A partition that its topic should have
        and that nobody found has a row without a store, which a later restoration fills.
        Change logs are to be read again. All of that is done, or nothing.
        """
        with self._db.transaction():
            if has_change_logs:
                self.change_logs.mark_dirty(system_change_log().full)
            return self._restore(rows, prepared)

    def _restore(self, rows: Iterable[PartitionRow], prepared: Collection[int]) -> list[PartitionRow]:
        left_out: list[PartitionRow] = []
        to_come: list[PartitionRow] = []
        for row in rows:
            self.skip_numbers(row.number + 1)
            if not self._is_free(row):
                left_out.append(row)
            elif row.number in prepared:
                to_come.append(row)
            else:
                name = TopicName.parse(row.topic)
                self.tenants.add_namespace(name.namespace_name)
                count = max(row.partition_index + 1, self.partition_count(row.topic) or 0)
                self._db.execute("INSERT OR REPLACE INTO topic VALUES (?, ?)", (row.topic, count))
                self._put(row)
        for row in to_come:
            if self.partition_count(row.topic) is not None:
                self._put(row)
        self._fill_gaps()
        return left_out

    def _is_free(self, row: PartitionRow) -> bool:
        """Whether a partition that was found may have its name in the catalog.

        It may have it already.
        """
        for name, number, store_id in self._db.execute(
            "SELECT name, number, store_id FROM partition WHERE name = ? OR number = ?",
            (row.name, row.number),
        ):
            if store_id and (name, number, store_id) != (row.name, row.number, row.store_id):
                return False
        count = self.partition_count(row.topic)
        return count is None or (count == 0) == (row.partition_index < 0)

    def _put(self, row: PartitionRow) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO partition VALUES (?, ?, ?, ?, ?, 1)",
            (row.name, row.number, row.topic, row.partition_index, row.store_id),
        )
        if is_change_log(TopicName.parse(row.name)):
            self.change_logs.mark_dirty(row.name)

    def is_taken(self, name: str, topic: str) -> bool:
        """Whether there is another partition of this name, or another kind of topic."""
        found = self.partition(name)
        if found is not None:
            return bool(found.store_id)
        count = self.partition_count(topic)
        return count is not None and (count == 0) != (name == topic)

    def _fill_gaps(self) -> None:
        for topic, count in self._db.execute("SELECT name, partitions FROM topic"):
            known = {row.partition_index for row in self.all_partitions(topic)}
            for index in set(range(count)) - known:
                # No number of its own is known: one that is granted to nobody.
                self._db.execute(
                    "INSERT INTO partition SELECT ?, MIN(0, COALESCE(MIN(number), 0)) - 1, ?, ?, '', 1 "
                    "FROM partition",
                    (TopicName.parse(topic).partition(index).full, topic, index),
                )

    def partition_count(self, topic: str) -> int | None:
        """0 for a topic without partitions, None for one that does not exist."""
        rows = self._db.execute("SELECT partitions FROM topic WHERE name = ?", (topic,))
        return int(rows[0][0]) if rows else None

    def partitions(self, topic: str) -> list[PartitionRow]:
        """The partitions of a topic by index; index -1 stands for a topic without partitions."""
        count = self.partition_count(topic)
        return [row for row in self.all_partitions(topic) if count is None or row.partition_index < count]

    def all_partitions(self, topic: str) -> list[PartitionRow]:
        """As `partitions`, with those that were prepared and are not added yet."""
        return self._rows("topic = ? ORDER BY partition_index", topic)

    def partition(self, name: str) -> PartitionRow | None:
        """A partition (or unpartitioned topic) by its own full name."""
        return next(iter(self._rows("name = ?", name)), None)

    def numbered(self, number: int) -> PartitionRow | None:
        """A partition by its number."""
        return next(iter(self._rows("number = ?", number)), None)

    def _rows(self, condition: str, value: str | int) -> list[PartitionRow]:
        rows = self._db.execute(
            "SELECT name, number, topic, partition_index, store_id, has_ledger FROM partition "  # noqa: S608
            f"WHERE {condition}",  # one of the conditions above and below, with no value in it
            (value,),
        )
        return [_partition_row(row) for row in rows]

    def create(self, topic: TopicName, partitions: int, stores: Sequence[str]) -> list[PartitionRow]:
        """Create a topic; its partitions get their numbers, for ever, and take turns in `stores`.

        0 partitions is a topic without. Raises NotAllowedError if it exists, TopicNotFound for a missing
        namespace.
        """
        self.tenants.check_namespace(topic.namespace_name)
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
            self._db.execute(
                "INSERT INTO partition VALUES (?, ?, ?, ?, ?, 0)",
                (name, self._next_number(topic.full), topic.full, index, stores[turn % len(stores)]),
            )

    def _next_number(self, topic: str) -> int:
        _, end = self._number_range()
        if self.last_number + 1 >= end:
            raise NotAllowedError(
                f"{topic} cannot be created: this catalog has granted all its numbers; begin a new "
                "range with `pulsar-ray stop` and `pulsar-ray start --rebuild-catalog`"
            )
        self._db.execute("UPDATE last_number SET value = value + 1")
        return self.last_number

    def prepare_partitions(
        self, topic: TopicName, partitions: int, stores: Sequence[str]
    ) -> list[PartitionRow]:
        """Make the rows that a partitioned topic lacks of so many partitions.

        Nobody sees them before `add_partitions`; rows that an earlier attempt made are taken as they are.
        """
        count = self.partition_count(topic.full) or 0
        known = {row.partition_index for row in self.all_partitions(topic.full)}
        with self._db.transaction():
            self._insert(topic, [i for i in range(count, partitions) if i not in known], stores)
        return [row for row in self.all_partitions(topic.full) if count <= row.partition_index < partitions]

    def complete(self, topic: TopicName, partitions: int, stores: Sequence[str]) -> None:
        """Give a change log the partitions that it lacks and that were never used.

        A catalog that is made anew finds those alone that were used. Raises NotAllowedError for a topic of
        that name which was made before the name was reserved.
        """
        count = self.partition_count(topic.full)
        if count == 0:
            raise NotAllowedError(
                f"{topic.full} is a topic without partitions, made before its name was reserved for the "
                "broker: delete it first"
            )
        with self._db.transaction():
            for row in self.all_partitions(topic.full):
                if not row.store_id and not self.change_logs.is_known(row.name):
                    self._db.execute("DELETE FROM partition WHERE name = ?", (row.name,))
            known = {row.partition_index for row in self.all_partitions(topic.full)}
            self._insert(topic, [i for i in range(partitions) if i not in known], stores)
            self.add_partitions(topic.full, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Give a topic at least so many partitions, all of which were prepared."""
        self._db.execute(
            "UPDATE topic SET partitions = MAX(partitions, ?) WHERE name = ?", (partitions, topic)
        )

    def opened(self, name: str) -> None:
        """Record that the partition's ledger directory exists.

        From now on a missing one is a loss, and never made anew.
        """
        self._db.execute("UPDATE partition SET has_ledger = 1 WHERE name = ? AND has_ledger = 0", (name,))

    def delete(self, topic: str) -> list[PartitionRow]:
        """Forget a topic, and return its rows as they were.

        Its numbers are not used again. Raises TopicNotFound.
        """
        rows = self.all_partitions(topic)
        if not rows:
            raise TopicNotFound(f"the topic {topic} does not exist")
        with self._db.transaction():
            self._db.execute(
                "DELETE FROM inheritance WHERE partition IN (SELECT name FROM partition WHERE topic = ?)",
                (topic,),
            )
            self._db.execute("DELETE FROM partition WHERE topic = ?", (topic,))
            self._db.execute("DELETE FROM topic WHERE name = ?", (topic,))
        return rows

    def drop_partition(self, name: str) -> None:
        """Forget one partition, or topic without partitions, that is lost for good."""
        self._db.execute("DELETE FROM partition WHERE name = ?", (name,))
        self._db.execute("DELETE FROM topic WHERE name = ?", (name,))

    def topics_of(self, namespace: str) -> list[tuple[str, int]]:
        """(full name, number of partitions or 0) of the topics of a namespace, by name."""
        query = "SELECT name, partitions FROM topic WHERE name > ? AND name < ? ORDER BY name"
        found: list[tuple[str, int]] = []
        for domain in (NON_PERSISTENT, PERSISTENT):
            # Names go on behind the slash, and "0" is the character that comes next.
            found += self._db.execute(query, (f"{domain}://{namespace}/", f"{domain}://{namespace}0"))
        return found

    def count_topics(self) -> int:
        """How many topics there are, the broker's own included."""
        ((count,),) = self._db.execute("SELECT COUNT(*) FROM topic")
        return int(count)

    def partitions_per_store(self) -> dict[str, int]:
        """How many partitions each store holds."""
        query = "SELECT store_id, partitions FROM store_count WHERE store_id <> '' AND partitions > 0"
        return dict(self._db.execute(query))

    def close(self) -> None:
        """Close the file."""
        if self._decisions is not None:
            self._decisions.close()
        self._db.close()


def _partition_row(row: tuple[str, int, str, int, str, int]) -> PartitionRow:
    name, number, topic, index, store_id, has_ledger = row
    return PartitionRow(name, number, topic, index, store_id, bool(has_ledger))
