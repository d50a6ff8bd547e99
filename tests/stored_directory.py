"""A small data directory as a node's actors write it, made without them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.subscription.delayed.delayed_tracker import index_directory
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription
from pulsar_ray.managed_ledger.delayed.delayed_index import DelayedIndex
from pulsar_ray.managed_ledger.delayed.delayed_rows import empty_rows
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.managed_ledger.store.store_identity import CATALOG_FILE, StoreIdentity, write_identity
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.topic_name import TopicName
from tests.stored_blocks import abandon, append_blocks, block, change, settings

STORE, CLUSTER, GENERATION = "store-1", "cluster-1", "generation-1"
TOPICS = ("persistent://public/default/orders", "persistent://public/default/bills")
MESSAGES = 24
"""Of each topic, three in a block, each an entry of its own."""
SUBSCRIPTION = "audit"


class StoredTopic(NamedTuple):
    """One of the topics of a directory."""

    name: str
    number: int
    directory: Path

    @property
    def ledger_id(self) -> int:
        """The ledger that has all of its messages."""
        return self.number << 31

    @property
    def segment(self) -> Path:
        return self.directory / f"{self.ledger_id}-0.seg"

    def manifest(self) -> Path:
        """The newest manifest."""
        return newest(self.directory.glob("manifest-*"))

    def cursor_log(self) -> Path:
        """The newest log of the subscription's cursor."""
        return newest(cursor_directory(self.directory, 1).glob("cursor-*"))

    def open(self, now_ms: int = 2000) -> ManagedLedger:
        """Take the topic's log over, as its partition does."""
        identity = TopicIdentity(self.number, self.name, -1, CLUSTER)
        return ManagedLedger.open(self.directory, identity, settings(), now_ms, must_exist=True)


def newest(logs: Iterable[Path]) -> Path:
    """Return the file of a record log that its last owner wrote last."""
    return max(logs, key=lambda path: [int(part) for part in path.name.split("-")[1].split(".")])


def make_directory(path: Path, *, is_closed: bool = False) -> list[StoredTopic]:
    """Make a data directory with two topics; unless closed, they are left as kill -9 leaves them.

    The first half of the messages is acknowledged, and one in the second; one row of the index of delayed
    messages waits.
    """
    path.mkdir(parents=True, exist_ok=True)
    catalog, _ = Catalog.make(path / CATALOG_FILE, CLUSTER, GENERATION)
    catalog.remember_store(STORE, "host-1", str(path))
    made = []
    for name in TOPICS:
        (row,) = catalog.create(TopicName.parse(name), 0, [STORE])
        topic = StoredTopic(name, row.number, path / "p" / str(row.number))
        _fill(topic, is_closed=is_closed)
        catalog.opened(name)
        made.append(topic)
    identity = StoreIdentity(
        STORE,
        cluster_id=CLUSTER,
        catalog_store_id=STORE,
        catalog_host="host-1",
        generations=(GENERATION,),
        numbers_below=catalog.last_number + 1,
    )
    catalog.close()
    write_identity(path, identity)
    return made


def _fill(topic: StoredTopic, *, is_closed: bool) -> None:
    identity = TopicIdentity(topic.number, topic.name, -1, CLUSTER)
    log = ManagedLedger.open(topic.directory, identity, settings(), 1000)
    change(log, log.changes.register(SUBSCRIPTION, True, "earliest"))
    change(log, log.changes.switch_deduplication(on=True))
    for seq in range(0, MESSAGES, 3):
        append_blocks(log, [block(seq, rows=3, publish_ms=1000 + seq, producer="till")])
    _acknowledge(topic)
    if is_closed:
        log.close()
    else:
        abandon(log)


def _acknowledge(topic: StoredTopic) -> None:
    directory = cursor_directory(topic.directory, 1)
    store = CursorStore.create(directory, CursorSubscription(SUBSCRIPTION), Position(topic.ledger_id, -1))
    store.cursor.set_ledgers([(topic.ledger_id, MESSAGES - 1)])
    for first, last in ((0, MESSAGES // 2 - 1), (MESSAGES - 4, MESSAGES - 4)):
        store.cursor.acknowledge(topic.ledger_id, first, last)
        flush = store.begin_flush()
        assert flush is not None
        flush.run()
        store.finish_flush(flush)
    store.close()
    index = DelayedIndex.open(
        index_directory(topic.directory, 1), Position(topic.ledger_id, MESSAGES // 2 - 1)
    )
    rows = empty_rows(1)
    rows[0] = (9_000_000_000_000, topic.ledger_id, MESSAGES - 1, 0, 8192, 80, 1, 0)
    index.add(rows, Position(topic.ledger_id, MESSAGES - 1))
    index.flush()
    index.close()
