"""Compacted topics: who reads the latest of each key gets that, and nothing else; all others see the log."""

from __future__ import annotations

import asyncio
import errno
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition.topic_compaction import TopicCompaction
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.client.consumer.table_view import TableView
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError
from pulsar_ray.ledger.segment_file import parse_compacted_name
from pulsar_ray.managed_ledger.compaction.compacted_form import numbers_of_forms, remove_leftovers
from pulsar_ray.managed_ledger.compaction.compaction_order import CompactionOrder, CompactionOutcome
from pulsar_ray.managed_ledger.log.commit import ManifestChange
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted
from pulsar_ray.managed_ledger.log.manifest_changes import ManifestChanges
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import compactor_name, dispatcher_name, partition_name
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker

ROWS: list[tuple[str | None, bytes | None]] = [
    ("a", b"a1"), ("b", b"b1"), (None, b"n1"), ("a", b"a2"), ("c", b"c1"), ("d", b"d1"), ("b", b"b2"),
    ("c", None), ("e", b"e1"), ("", b"n2"), ("d", b""), ("a", b"a3"),
]  # fmt: skip
LATEST = [b"b2", b"e1", b"a3"]


def publish(client: Client, topic: str, rows: Any = None, *, batched: bool = False) -> list[MessageId]:
    producer = client.create_producer(topic, batching_enabled=batched, block_if_queue_full=True)
    ids: list[MessageId] = []
    for key, value in ROWS if rows is None else rows:
        producer.send_async(
            value, lambda _result, sent: ids.append(sent), partition_key=key, properties={"v": repr(value)}
        )
    producer.flush()
    producer.close()
    return ids


def compact(broker: Broker, topic: str) -> None:
    topics = broker.admin().topics
    topics.compact(topic)
    wait_until(lambda: topics.compaction_status(topic)["status"] != "RUNNING")
    assert topics.compaction_status(topic) | {"progress": 1.0} == topics.compaction_status(topic)
    status = topics.compaction_status(topic)
    assert (status["status"], status["last_error"]) == ("SUCCESS", "")


def rest(reader: Reader) -> list[bytes]:
    """All that a reader has to read."""
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(WAIT_MS).data())
    return found


def drained(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


@pytest.mark.parametrize("batched", [False, True])
def test_a_reader_gets_the_latest_of_each_key_with_its_own_id(
    broker: Broker, client: Client, batched: bool
) -> None:
    topic = broker.topic()
    ids = publish(client, topic, batched=batched)
    before = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert len(rest(before)) == len(ROWS), "before any compaction it is the whole log"
    compact(broker, topic)
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(WAIT_MS))
    assert [each.data() for each in found] == LATEST
    assert [each.message_id() for each in found] == [ids[6], ids[8], ids[11]]
    assert [each.properties() for each in found] == [{"v": repr(value)} for value in LATEST]
    plain = client.create_reader(topic, MessageId.earliest)
    assert len(rest(plain)) == len(ROWS)
    publish(client, topic, [("a", b"a4"), ("f", b"f1"), ("f", b"f2")], batched=batched)
    assert rest(reader) == [b"a4", b"f1", b"f2"], "behind the horizon it is the log"
    compact(broker, topic)
    assert rest(reader) == []
    reader.seek(MessageId.earliest)
    assert rest(reader) == [b"b2", b"e1", b"a4", b"f2"]


def test_seeks_go_to_the_next_message_that_is_kept(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    ids = publish(client, topic)
    compact(broker, topic)
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert rest(reader) == LATEST
    reader.seek(ids[0])
    assert rest(reader) == LATEST
    reader.seek(ids[6])
    assert rest(reader) == LATEST[1:]
    reader.seek(0)
    assert rest(reader) == LATEST
    reader.seek(MessageId.latest)
    assert rest(reader) == []
    at = client.create_reader(topic, ids[6], is_read_compacted=True, start_message_id_inclusive=True)
    assert rest(at) == LATEST
    behind_removed = client.create_reader(topic, ids[7], is_read_compacted=True)
    assert rest(behind_removed) == LATEST[1:]


KEYS: list[tuple[str | None, bytes | None]] = [(f"k{number}", b"%d" % number) for number in range(20)]
GONE: list[tuple[str | None, bytes | None]] = [("k0", None), ("k1", b"new"), ("k2", None)]


def trim(broker: Broker, topic: str) -> Any:
    """End the log's last ledger, delete what nobody needs; returns the first entry that is left."""
    partition = broker.cluster.partition(topic)
    server = partition.server
    assert server is not None

    async def end_and_trim() -> Any:
        server.ledger.changes.end_log_soon()
        await server.trim_now()
        return server.ledger.first_position

    return partition.result(partition.submit(end_and_trim), WAIT_MS / 1000)


class Reading:
    """A reader, or a consumer that acknowledges, with little room."""

    def __init__(self, client: Client, topic: str, *, durable: bool) -> None:
        options: dict[str, Any] = {"is_read_compacted": True, "receiver_queue_size": 1}
        self.reader: Any
        if durable:
            self.reader = client.subscribe(topic, "s", initial_position=EARLIEST, **options)
        else:
            self.reader = client.create_reader(topic, MessageId.earliest, **options)
        self._is_durable = durable

    def take(self) -> tuple[str, bytes]:
        """The next key and value."""
        if not self._is_durable:
            message = self.reader.read_next(WAIT_MS)
        else:
            message = self.reader.receive(WAIT_MS)
            self.reader.acknowledge(message)
        return message.partition_key(), message.data()


@pytest.mark.parametrize("is_compacted_before", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_a_compaction_takes_no_removal_from_a_reading_that_is_under_way(
    broker: Broker, client: Client, durable: bool, is_compacted_before: bool
) -> None:
    """What a newer form has not any more comes from the log, which is kept so long."""
    topic = broker.topic()
    publish(client, topic, KEYS)
    if is_compacted_before:
        compact(broker, topic)
    reading = Reading(client, topic, durable=durable)
    assert [reading.take() for _ in range(4)] == KEYS[:4]
    publish(client, topic, GONE[:2])
    compact(broker, topic)
    trim(broker, topic)
    publish(client, topic, GONE[2:])
    compact(broker, topic)
    trim(broker, topic)
    again = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert sorted(rest(again)) == sorted([b"new", *(value for _, value in KEYS[3:] if value)])
    found = []
    while reading.reader.has_message_available():
        found.append(reading.take())
    assert found == [*KEYS[4:], *((key, value or b"") for key, value in GONE)]
    reading.reader.seek(MessageId.earliest)
    assert [reading.take()[0] for _ in KEYS[2:]] == [*(key for key, _ in KEYS[3:]), "k1"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_reading_whose_dispatcher_was_killed_goes_on_in_the_log(
    broker: Broker, client: Client, durable: bool
) -> None:
    topic = broker.topic()
    publish(client, topic, KEYS)
    compact(broker, topic)
    reading = Reading(client, topic, durable=durable)
    seen = dict(reading.take() for _ in range(4))
    publish(client, topic, GONE)
    compact(broker, topic)
    broker.cluster.kill(dispatcher_name(TopicName.parse(topic).full, "s", durable))
    while seen.get("k2") != b"":
        seen.update([reading.take()])
    assert seen == {key: value or b"" for key, value in [*KEYS, *GONE]}


@pytest.mark.parametrize("durable", [True, False])
def test_a_killed_dispatcher_misses_no_removal_where_what_it_read_is_only_in_a_form(
    broker: Broker, client: Client, durable: bool
) -> None:
    topic = broker.topic()
    publish(client, topic, KEYS)
    compact(broker, topic)
    trim(broker, topic)
    reading = Reading(client, topic, durable=durable)
    seen = dict(reading.take() for _ in range(4))
    behind = publish(client, topic, GONE)[0]
    compact(broker, topic)
    broker.cluster.kill(dispatcher_name(TopicName.parse(topic).full, "s", durable))
    kept = trim(broker, topic)
    assert tuple(kept) <= (behind.ledger_id(), behind.entry_id()), "all that is in no form of before"
    while seen.get("k2") != b"":
        seen.update([reading.take()])
    assert seen == {key: value or b"" for key, value in [*KEYS, *GONE]}


def test_a_table_view_forgets_a_key_that_is_removed_and_compacted_while_it_loads(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    publish(client, topic, [(f"k{number}", b"x" * 10) for number in range(3000)])
    compact(broker, topic)
    taken = TableView._take_readable
    looks = []

    def held(self: TableView) -> Any:
        looks.append(self)
        view = taken(self)
        if len(looks) == 1:
            publish(client, topic, GONE)
            compact(broker, topic)
        return view

    monkeypatch.setattr(TableView, "_take_readable", held)
    with client.create_table_view(topic) as view:
        wait_until(lambda: (view.get("k0"), view.get("k1"), view.get("k2")) == (None, b"new", None))
        assert len(view) == 2998


@pytest.mark.parametrize("batched", [False, True])
def test_removed_messages_count_as_acknowledged(broker: Broker, client: Client, batched: bool) -> None:
    topic = broker.topic()
    publish(client, topic, batched=batched)
    compact(broker, topic)
    subscribed: dict[str, Any] = {"initial_position": EARLIEST, "is_read_compacted": True}
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True, **subscribed)
    found = drained(consumer, 3)
    assert [each.data() for each in found] == LATEST
    consumer.acknowledge(found[1])
    consumer.negative_acknowledge(found[0])
    consumer.close()
    again = client.subscribe(topic, "s", batch_index_ack_enabled=True, **subscribed)
    assert [each.data() for each in drained(again, 2)] == [LATEST[0], LATEST[2]]
    assert not again.has_message_available()
    again.close()
    last = client.subscribe(topic, "s", ConsumerType.Failover, batch_index_ack_enabled=True, **subscribed)
    for message in drained(last, 2):
        last.acknowledge(message)
    stats = broker.admin().topics
    wait_until(lambda: stats.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0)
    last.close()
    assert not client.subscribe(topic, "s", **subscribed).has_message_available()


def test_the_last_id_is_that_of_the_view(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    ids = publish(client, topic, [("a", b"1"), ("b", b"1"), ("b", None)])
    compact(broker, topic)
    consumer = client.subscribe(topic, "s", is_read_compacted=True, initial_position=EARLIEST)
    assert consumer.get_last_message_id() == ids[0]
    assert consumer.receive(WAIT_MS).data() == b"1"
    assert not consumer.has_message_available()
    publish(client, topic, [("a", None)])
    compact(broker, topic)
    empty = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert not empty.has_message_available()
    publish(client, topic, [("c", b"new")])
    assert empty.read_next(WAIT_MS).data() == b"new"


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_reader_that_starts_behind_all_that_is_kept_of_a_batch_has_nothing(
    broker: Broker, client: Client, inclusive: bool
) -> None:
    topic = broker.topic()
    ids: list[MessageId] = []
    with client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for key, value in (("a", b"1"), ("b", b"2"), ("c", b"3"), ("c", None), ("d", b"")):
            producer.send_async(value, lambda _result, id_: ids.append(id_), partition_key=key)
    compact(broker, topic)
    for behind in (3, 4):
        reader = client.create_reader(
            topic, ids[behind], is_read_compacted=True, start_message_id_inclusive=inclusive
        )
        assert not reader.has_message_available()
        reader.seek(MessageId.earliest)
        assert rest(reader) == [b"1", b"2"]
        reader.seek(ids[1])
        assert rest(reader) == ([b"2"] if inclusive else [])

    async def read() -> None:
        aio = broker.asyncio_client()
        late = await aio.create_reader(
            topic, ids[3], is_read_compacted=True, start_message_id_inclusive=inclusive
        )
        assert not await late.has_message_available()
        await aio.close()

    asyncio.run(read())


def test_what_was_compacted_may_be_trimmed(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    publish(client, topic)
    compact(broker, topic)
    broker.restart(kill=False)
    client = broker.client()
    publish(client, topic, [("g", b"g1")])
    compact(broker, topic)
    partition = broker.cluster.partition(topic)
    assert partition.server is not None
    first = partition.server.ledger.first_position
    partition.result(partition.submit(partition.server.trim_now), WAIT_MS / 1000)
    topics = broker.admin().topics
    assert partition.server.ledger.first_position > first, "the first ledger is gone"
    assert len(rest(client.create_reader(topic, MessageId.earliest))) < len(ROWS)
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert rest(reader) == [*LATEST, b"g1"]
    consumer = client.subscribe(topic, "s", is_read_compacted=True, initial_position=EARLIEST)
    assert [each.data() for each in drained(consumer, 4)] == [*LATEST, b"g1"]
    reader.seek(1)
    assert rest(reader) == [*LATEST, b"g1"]
    with client.create_table_view(topic) as view:
        assert {key: view.get(key) for key in "abeg"} == {"a": b"a3", "b": b"b2", "e": b"e1", "g": b"g1"}
        assert len(view) == 4
    publish(client, topic, [("a", b"a5"), ("g", None)])
    compact(broker, topic)
    assert rest(client.create_reader(topic, MessageId.earliest, is_read_compacted=True)) == [
        b"b2", b"e1", b"a5",
    ]  # fmt: skip
    topics.truncate(topic)
    assert rest(client.create_reader(topic, MessageId.earliest, is_read_compacted=True)) == []


def test_a_killed_compactor_leaves_the_view_and_a_next_run_works(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    publish(client, topic)
    compact(broker, topic)
    publish(client, topic, [(f"k{number}", b"x" * 1000) for number in range(2000)], batched=True)
    topics.compact(topic)
    broker.cluster.kill(compactor_name(topic))
    wait_until(lambda: topics.compaction_status(topic)["status"] != "RUNNING")
    assert topics.compaction_status(topic)["status"] in ("ERROR", "SUCCESS")
    compact(broker, topic)
    found = rest(client.create_reader(topic, MessageId.earliest, is_read_compacted=True))
    assert (found[:3], len(found)) == (LATEST, 2003)
    broker.restart(kill=True)
    client = broker.client()
    found = rest(client.create_reader(topic, MessageId.earliest, is_read_compacted=True))
    assert (found[:3], len(found)) == (LATEST, 2003)
    directory = broker.cluster.partition(topic).directory

    def forms() -> set[int]:
        return {parsed[1] for path in directory.iterdir() if (parsed := parse_compacted_name(path.name))}

    wait_until(lambda: len(forms()) == 1)


def test_a_form_whose_record_the_disk_refused_stays_until_a_next_one_holds(
    make_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record may be on the disk all the same, and hold once the partition starts again."""
    broker = make_broker()
    client, topic = broker.client(), broker.topic()
    publish(client, topic)
    directory = broker.cluster.partition(topic).directory
    disk, take = broker.cluster.disk, ManifestChanges.take_compacted

    def refused(changes: ManifestChanges, record: Compacted) -> ManifestChange:
        disk.fail("fdatasync", errno.EIO)
        return take(changes, record)

    looks: list[set[int]] = []

    def noted(directory: Path, kept: set[int], *rest: Any) -> bool:
        outcome = remove_leftovers(directory, kept, *rest)
        looks.append(numbers_of_forms(directory))
        return outcome

    monkeypatch.setattr("pulsar_ray.broker.partition.topic_compaction.remove_leftovers", noted)
    with monkeypatch.context() as patch:
        patch.setattr(ManifestChanges, "take_compacted", refused)
        topics = broker.admin().topics
        topics.compact(topic)
        wait_until(lambda: topics.compaction_status(topic)["status"] == "ERROR")
    seen = len(looks)
    wait_until(lambda: len(looks) > seen)
    assert looks[-1] == numbers_of_forms(directory) == {1}
    broker.restart(kill=True)
    reader = broker.client().create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert rest(reader)[-1]
    compact(broker, topic)
    wait_until(lambda: numbers_of_forms(directory) in ({1}, {2}))


def test_a_threshold_compacts_by_itself_and_keeps_what_was_not_compacted(make_broker: Any) -> None:
    broker = make_broker(broker_service_compaction_monitor_interval_in_seconds=1)
    client, topic, topics = broker.client(), broker.topic(), broker.admin().topics
    topics.policies.set(topic, "compaction_threshold", 5000)
    publish(client, topic, [("a", b"x" * 100), ("a", b"y" * 100)])
    publish(client, topic, [("a", b"z" * 1000)] * 10)
    seen: list[dict[str, Any]] = []

    def is_compacted() -> bool:
        seen.append(topics.stats(topic).get("compaction", {}))
        return bool(seen[-1].get("lastCompactionSucceedTimestamp", 0) > 0)

    wait_until(is_compacted)
    stats = seen[-1]
    assert stats["lastCompactionRemovedEventCount"] > 0
    assert stats["lastCompactionFailedTimestamp"] == 0


def test_a_list_of_topics_and_partitions(broker: Broker, client: Client) -> None:
    one, many, topics = broker.topic(), broker.topic(2), broker.admin().topics
    publish(client, one)
    publish(client, many)
    topics.compact(many)
    wait_until(lambda: topics.compaction_status(many)["status"] == "SUCCESS")
    assert set(topics.compaction_status(many)["partitions"]) == {f"{many}-partition-{n}" for n in (0, 1)}
    compact(broker, one)
    consumer = client.subscribe([one, many], "s", is_read_compacted=True, initial_position=EARLIEST)
    assert sorted(each.data() for each in drained(consumer, 6)) == sorted(2 * LATEST)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_pattern_reads_each_topic_as_its_table(broker: Broker, client: Client, kind: ConsumerType) -> None:
    one, many, topics = broker.topic(), broker.topic(2), broker.admin().topics
    publish(client, one)
    publish(client, many)
    topics.compact(many)
    wait_until(lambda: topics.compaction_status(many)["status"] == "SUCCESS")
    compact(broker, one)
    names = "|".join(re.escape(name.rsplit("/", 1)[-1]) for name in (one, many))
    pattern = re.compile(f"persistent://public/default/({names})")
    consumer = client.subscribe(pattern, "s", kind, is_read_compacted=True, initial_position=EARLIEST)
    found = drained(consumer, 6)
    assert sorted(each.data() for each in found) == sorted(2 * LATEST)
    assert {each.topic_name().split("-partition-")[0] for each in found} == {one, many}
    for message in found[:4]:
        consumer.acknowledge(message)
    consumer.close()
    # What was acknowledged does not come again, and what was removed never does.
    again = client.subscribe(pattern, "s", kind, is_read_compacted=True)
    assert sorted(each.data() for each in drained(again, 2)) == sorted(each.data() for each in found[4:])
    publish(client, one, [("a", b"a4"), ("f", b"f1")])
    assert [each.data() for each in drained(again, 2)] == [b"a4", b"f1"]
    again.close()
    for refused in (ConsumerType.Shared, ConsumerType.KeyShared):
        for those in (pattern, [one, many]):
            with pytest.raises(InvalidConfiguration, match="is_read_compacted"):
                client.subscribe(those, "s2", refused, is_read_compacted=True)


def test_a_request_that_comes_again_is_the_same_one(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost; another user's request is refused while the compaction runs."""
    topic, topics = broker.topic(), broker.admin().topics
    publish(client, topic)
    address = partition_name(TopicName.parse(topic).full)
    may_go_on = threading.Event()
    asked = TopicCompaction._asked

    def held(self: TopicCompaction, order: CompactionOrder) -> CompactionOutcome:
        assert may_go_on.wait(WAIT_MS / 1000)
        return asked(self, order)

    def call(request_id: str) -> None:
        broker.cluster.call(address, "call", "compact", {"request_id": request_id}, timeout_s=20.0)

    def is_over() -> bool:
        return bool(topics.compaction_status(topic)["status"] == "SUCCESS")

    with monkeypatch.context() as patched:
        patched.setattr(TopicCompaction, "_asked", held)
        call("one")
        call("one")
        with pytest.raises(NotAllowedError, match="in progress"):
            topics.compact(topic)
        may_go_on.set()
        wait_until(is_over)
        removed = topics.stats(topic)["compaction"]["lastCompactionRemovedEventCount"]
        assert removed == 9
        may_go_on.clear()
        publish(client, topic)
        call("one")
        assert topics.compaction_status(topic)["status"] == "SUCCESS"
        may_go_on.set()
    compact(broker, topic)


def test_a_form_that_is_read_in_bulk_outlasts_those_that_follow(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    publish(client, topic)
    compact(broker, topic)
    address = partition_name(TopicName.parse(topic).full)

    def call(method: str, arguments: dict[str, Any]) -> Any:
        return broker.cluster.call(address, "call", method, arguments, timeout_s=20.0)

    planned = call("plan_table", {"lease_ms": WAIT_MS * 10})
    files = [Path(segment[2]) for segment in planned["segments"]]
    assert [parse_compacted_name(file.name) is not None for file in files] == [True]
    for number in range(2):
        publish(client, topic, [("a", b"%d" % number)])
        compact(broker, topic)
    directory = files[0].parent

    def forms() -> int:
        return sum(parse_compacted_name(path.name) is not None for path in directory.iterdir())

    actor = broker.cluster.partition(topic)

    async def tick() -> None:
        assert actor.server is not None
        actor.server.tick()
        if (removing := actor.server._parts.compaction._removing) is not None:
            await removing

    actor.result(actor.submit(tick), WAIT_MS / 1000)
    assert forms() == 3
    call("release_lease", {"lease_id": planned["lease_id"]})
    wait_until(lambda: forms() == 1)
    assert not files[0].exists()


def test_the_asyncio_client_reads_it_too(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    publish(client, topic, batched=True)
    compact(broker, topic)

    async def run() -> list[bytes]:
        aio = broker.asyncio_client()
        consumer = await aio.subscribe(topic, "s", is_read_compacted=True, initial_position=EARLIEST)
        found = [(await consumer.receive()).data() for _ in range(3)]
        reader = await aio.create_reader(topic, MessageId.earliest, is_read_compacted=True)
        assert [(await reader.read_next()).data() for _ in range(3)] == found
        assert not await reader.has_message_available()
        await aio.close()
        return found

    assert asyncio.run(run()) == LATEST


def test_refusals(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    for kind in (ConsumerType.Shared, ConsumerType.KeyShared):
        with pytest.raises(InvalidConfiguration, match="is_read_compacted"):
            client.subscribe(topic, "s", kind, is_read_compacted=True)
    passing = topic.replace("persistent", "non-persistent")
    with pytest.raises(InvalidConfiguration, match="non-persistent"):
        client.subscribe(passing, "s", is_read_compacted=True)
    with pytest.raises(NotAllowedError, match="non-persistent"):
        client.create_reader(passing, MessageId.earliest, is_read_compacted=True)
    with pytest.raises(NotAllowedError, match="non-persistent"):
        topics.compact(passing)
    assert topics.compaction_status(topic)["status"] == "NOT_RUN"
    compact(broker, topic)
    assert topics.stats(topic)["compaction"]["lastCompactionRemovedEventCount"] == 0
