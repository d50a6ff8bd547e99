"""Seeking and reading over every carrier: ids, times, ends, batches, last ids, availability."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.errors import (
    AlreadyClosed,
    BrokerMetadataError,
    OperationNotSupported,
    SessionLost,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.cluster import AttachReply
from tests.conformance.broker import EARLIEST, QUIET_MS, WAIT_MS, Broker, numbers, receive, send_batch, values

Quiet = Callable[[Consumer], None]


def read(reader: Reader, count: int) -> list[bytes]:
    return [reader.read_next(WAIT_MS).data() for _ in range(count)]


def read_rest(reader: Reader) -> list[bytes]:
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(WAIT_MS).data())
    return got


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_reader_goes_on_behind_the_last_message_by_an_id_that_does_not_tell_the_size_of_its_batch(
    broker: Broker, client: Client, is_batch: bool, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    with client.create_producer(topic, batching_enabled=is_batch) as producer:
        last = [producer.send(value) for value in numbers(0, 2)][-1]
    place = MessageId(-1, last.ledger_id(), last.entry_id(), 0)
    reader = client.create_reader(topic, place)
    assert not reader.has_message_available()
    with pytest.raises(Timeout):
        reader.read_next(QUIET_MS)
    assert not reader.has_message_available()
    consumer = client.subscribe(topic, "s")
    consumer.seek(place)
    assert not consumer.has_message_available()
    assert_quiet(consumer)
    send_batch(client, topic, [b"next", b"last"])
    assert read_rest(reader) == [b"next", b"last"]
    assert consumer.has_message_available()


@pytest.mark.parametrize("inclusive", [False, True])
def test_seek_to_an_id(broker: Broker, client: Client, inclusive: bool, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=inclusive)
    ids = [producer.send(value) for value in numbers(0, 10)]
    values(consumer, 7, acknowledge=True)
    first = 4 if inclusive else 5
    for target in (ids[4], MessageId(-1, ids[4].ledger_id(), ids[4].entry_id(), -1)):
        consumer.seek(target)
        assert values(consumer, 10 - first) == numbers(first, 10)
        assert_quiet(consumer)
    consumer.seek(ids[9])
    if inclusive:
        assert values(consumer, 1) == [b"000009"]
    assert_quiet(consumer)


def test_seek_to_a_time_starts_at_the_first_message_published_then(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for value in numbers(0, 10):
        producer.send(value)
    messages = receive(consumer, 10)
    times = [message.publish_timestamp() for message in messages]
    for target in (times[6], times[6] + 1, 0, times[-1] + 1):
        consumer.seek(target)
        expected = [message.data() for message in messages if message.publish_timestamp() >= target]
        assert values(consumer, len(expected)) == expected
        assert_quiet(consumer)


def test_seek_to_the_ends(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for value in numbers(0, 5):
        producer.send(value)
    values(consumer, 5, acknowledge=True)
    consumer.seek(MessageId.earliest)
    again = receive(consumer, 5)
    assert [(message.data(), message.redelivery_count()) for message in again] == [
        (v, 0) for v in numbers(0, 5)
    ]
    consumer.seek(MessageId.earliest)
    consumer.seek(MessageId.latest)
    assert_quiet(consumer)
    producer.send(b"new")
    assert values(consumer, 1) == [b"new"]
    for wrong in (1.5, None, "x", True, -1, 2**63):
        with pytest.raises(ValueError):
            consumer.seek(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a publish time is in ms since 1970"):
        client.create_reader(topic, MessageId.earliest).seek(-1)
    producer.send(b"newer")
    assert values(consumer, 1) == [b"newer"]


@pytest.mark.parametrize("inclusive", [False, True])
def test_seek_into_a_batch(broker: Broker, client: Client, inclusive: bool, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=inclusive)
    ids = send_batch(client, topic, numbers(0, 5))
    send_batch(client, topic, numbers(5, 8))
    values(consumer, 8, acknowledge=True)
    for index in (0, 2, 4):
        consumer.seek(ids[index])
        first = index if inclusive else index + 1
        assert values(consumer, 8 - first) == numbers(first, 8)
        assert_quiet(consumer)
    whole_entry = MessageId(-1, ids[0].ledger_id(), ids[0].entry_id(), -1)
    consumer.seek(whole_entry)
    assert values(consumer, 8 if inclusive else 3) == numbers(0 if inclusive else 5, 8)


def test_a_seek_is_durable_and_takes_acks_back(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    ids = [producer.send(value) for value in numbers(0, 10)]
    consumer.acknowledge_cumulative(receive(consumer, 10)[-1])
    consumer.seek(ids[3])
    broker.restart(kill=True)
    again = broker.client().subscribe(topic, "s")
    assert values(again, 6) == numbers(4, 10)
    assert_quiet(again)


def test_a_seek_after_a_cut_is_not_undone_by_repeated_acks(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for value in numbers(0, 10):
        producer.send(value)
    values(consumer, 10, acknowledge=True)
    consumer.seek(MessageId.earliest)
    broker.cluster.cut_lanes(f"{topic} -> s")
    assert values(consumer, 10) == numbers(0, 10)
    broker.cluster.kill(f"{topic} -> s")
    producer.send(b"new")
    assert values(consumer, 1) == [b"new"]
    assert_quiet(consumer)


def test_a_seek_on_a_shared_subscription_moves_everybody(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    seeking = client.subscribe(topic, "s", ConsumerType.Shared)
    other = broker.client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
    ids = [producer.send(value) for value in numbers(0, 10)]
    seeking.seek(ids[4])
    got: dict[Consumer, list[bytes]] = {seeking: [], other: []}
    while not set(numbers(5, 10)) <= {value for given in got.values() for value in given}:
        for consumer, given in got.items():
            with suppress(Timeout):
                given.append(consumer.receive(200).data())
    assert all(value >= numbers(5, 6)[0] for value in got[seeking])
    # The other one may have handed out what it had before it was told; after that nothing old comes.
    from_the_seek_on = [value for value in got[other] if value >= numbers(5, 6)[0]]
    assert got[other][-len(from_the_seek_on) :] == from_the_seek_on or not from_the_seek_on
    assert sorted(got[seeking] + from_the_seek_on) == numbers(5, 10)


def test_a_seek_on_partitions(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic(partitions=2)
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send_many(numbers(0, 20), partition_keys=[f"k{number % 5}" for number in range(20)])
    messages = receive(consumer, 20)
    own = [m for m in messages if m.message_id().partition() == 0]
    assert own
    consumer.seek(own[0].message_id())
    assert values(consumer, len(own) - 1) == [m.data() for m in own[1:]]
    assert_quiet(consumer)
    consumer.seek(MessageId.earliest)
    assert sorted(values(consumer, 20)) == numbers(0, 20)
    with pytest.raises(OperationNotSupported):
        consumer.seek(MessageId(-1, own[0].message_id().ledger_id(), 0, -1))


def test_the_last_message_id(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    assert str(consumer.get_last_message_id()) == "(-1,-1,-1,-1)"
    producer = client.create_producer(topic)
    for value in numbers(0, 3):
        last = producer.send(value)
        assert consumer.get_last_message_id() == last
    assert send_batch(client, topic, numbers(3, 6))[-1] == consumer.get_last_message_id()
    (alone,) = send_batch(client, topic, [b"6"])
    assert str(consumer.get_last_message_id()) == str(alone)
    assert alone.batch_index() == 0
    (many,) = producer.send_many(numbers(7, 10))
    assert consumer.get_last_message_id() == many
    consumer.acknowledge(consumer.get_last_message_id())
    broker.cluster.kill(topic)
    assert consumer.get_last_message_id() == many
    assert [message.message_id() for message in receive(consumer, 10)][-1] == many


def test_last_ids_of_partitions(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    consumer = client.subscribe(topic, "s")
    (last,) = client.create_producer(topic).send_many([b"a", b"b"], partition_keys=["k", "k"])
    found = consumer.get_last_message_ids()
    assert found[last.partition()] == last
    assert found[1 - last.partition()].ledger_id() == -1
    with pytest.raises(OperationNotSupported):
        consumer.get_last_message_id()


@pytest.mark.parametrize(
    ("start", "inclusive", "expected"),
    [
        (MessageId.earliest, False, 0),
        (MessageId.earliest, True, 0),
        (4, False, 5),
        (4, True, 4),
        (9, False, 10),
        (9, True, 9),
        (MessageId.latest, False, 10),
        (MessageId.latest, True, 9),
    ],
)
def test_a_reader_starts_where_it_is_told(
    broker: Broker, client: Client, start: Any, inclusive: bool, expected: int
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 10)]
    begin = ids[start] if isinstance(start, int) else start
    reader = client.create_reader(topic, begin, start_message_id_inclusive=inclusive)
    assert reader.topic() == topic
    assert read_rest(reader) == numbers(expected, 10)
    assert not reader.has_message_available()
    with pytest.raises(Timeout):
        reader.read_next(QUIET_MS)
    producer.send(b"new")
    assert reader.has_message_available()
    assert read(reader, 1) == [b"new"]
    assert not reader.has_message_available()


def test_a_reader_of_an_empty_topic_waits(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    readers = [
        client.create_reader(topic, start, start_message_id_inclusive=inclusive)
        for start in (MessageId.earliest, MessageId.latest)
        for inclusive in (False, True)
    ]
    assert [reader.has_message_available() for reader in readers] == [False] * 4
    client.create_producer(topic).send(b"first")
    assert [read(reader, 1) for reader in readers] == [[b"first"]] * 4


@pytest.mark.parametrize(
    ("index", "inclusive", "expected"), [(2, False, 3), (2, True, 2), (4, False, 5), (4, True, 4)]
)
def test_a_reader_starts_inside_a_batch(
    broker: Broker, client: Client, index: int, inclusive: bool, expected: int
) -> None:
    topic = broker.topic()
    ids = send_batch(client, topic, numbers(0, 5))
    send_batch(client, topic, numbers(5, 8))
    reader = client.create_reader(topic, ids[index], start_message_id_inclusive=inclusive)
    assert read(reader, 8 - expected) == numbers(expected, 8)
    assert not reader.has_message_available()


def test_a_reader_seeks(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 10)]
    reader = client.create_reader(topic, MessageId.earliest)
    first = reader.read_next(WAIT_MS)
    reader.seek(ids[6])
    assert read_rest(reader) == numbers(7, 10)
    reader.seek(MessageId.latest)
    assert not reader.has_message_available()
    reader.seek(first.publish_timestamp())
    assert read(reader, 1) == [b"000000"]
    reader.seek(MessageId.earliest)
    assert read(reader, 10) == numbers(0, 10)


def test_readers_hold_back_nothing_and_are_independent(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send_many(numbers(0, 10))
    readers = [client.create_reader(topic, MessageId.earliest, receiver_queue_size=2) for _ in range(3)]
    assert read(readers[0], 10) == read(readers[1], 10) == numbers(0, 10)
    partition = broker.cluster.partition(topic).server
    assert partition is not None
    assert partition.stats()["subscriptions"] == []
    readers[0].close()
    assert read(readers[2], 10) == numbers(0, 10)


def test_a_reader_goes_on_where_it_was_after_its_dispatcher_died(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    reader = client.create_reader(topic, MessageId.earliest, receiver_queue_size=4)
    got: list[bytes] = []
    for turn in range(3):
        producer.send_many(numbers(turn * 20, turn * 20 + 20))
        got += read(reader, 10)
        broker.cluster.kill(f"{topic} => readers")
        got += read(reader, 10)
    assert got == numbers(0, 60)
    assert not reader.has_message_available()


def test_a_reader_of_partitions_reads_all(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=3)
    client.create_producer(topic).send_many(numbers(0, 30), partition_keys=[f"k{n % 7}" for n in range(30)])
    reader = client.create_reader(topic, MessageId.earliest)
    assert sorted(read_rest(reader)) == numbers(0, 30)


def test_a_reader_with_a_listener(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    heard: list[bytes] = []
    client.create_reader(topic, MessageId.latest, reader_listener=lambda _c, m: heard.append(m.data()))
    client.create_producer(topic).send_many(numbers(0, 5))
    wait_until(lambda: heard == numbers(0, 5), what="the listener has all")


@pytest.mark.parametrize("queue", [1, 1000])
def test_what_is_on_its_way_counts_as_available(broker: Broker, client: Client, queue: int) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", receiver_queue_size=queue)
    for number in range(20):
        assert not consumer.has_message_available()
        producer.send_many(numbers(3 * number, 3 * number + 3))
        for value in numbers(3 * number, 3 * number + 3):
            assert consumer.has_message_available()
            assert values(consumer, 1, acknowledge=True) == [value]


def test_what_was_lost_on_its_way_counts_as_available(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "s")
    partition, attached = consumer.core.partitions.all[0], SimpleQueue[AttachReply]()
    reopen = partition.session.reopen
    monkeypatch.setattr(partition.session, "reopen", attached.put)
    wait_until(lambda: partition.link.carrier is not None, what="it is connected")
    carrier = partition.link.carrier
    assert carrier is not None
    partition.link.on_lost(carrier, SessionLost("cut by the test"))
    producer.send(b"m")
    reply = attached.get(timeout=WAIT_MS / 1000)
    assert consumer.has_message_available(), "it was granted, and comes when the consumer is open again"
    monkeypatch.setattr(partition.session, "reopen", reopen)
    while not attached.empty():  # a carrier may have been lost once more
        reply = attached.get()
    reopen(reply)
    assert values(consumer, 1, acknowledge=True) == [b"m"]
    assert not consumer.has_message_available()


def test_an_old_subscription_keeps_what_a_reader_skips(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    kept = client.subscribe(topic, "kept", initial_position=EARLIEST)
    client.create_producer(topic).send_many(numbers(0, 5))
    assert read(client.create_reader(topic, MessageId.earliest), 5) == numbers(0, 5)
    assert values(kept, 5) == numbers(0, 5)


def test_behind_latest_there_is_nothing_inclusive_or_not(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    send_batch(client, topic, numbers(0, 5))
    for inclusive in (False, True):
        consumer = client.subscribe(
            topic, f"s{inclusive}", initial_position=EARLIEST, start_message_id_inclusive=inclusive
        )
        consumer.seek(MessageId.latest)
        assert not consumer.has_message_available()
        with pytest.raises(Timeout):
            consumer.receive(QUIET_MS)
    reader = client.create_reader(topic, MessageId.earliest, start_message_id_inclusive=True)
    reader.seek(MessageId.latest)
    assert not reader.has_message_available()
    send_batch(client, topic, [b"new"])
    assert reader.read_next(WAIT_MS).data() == b"new"


@pytest.mark.parametrize("partitions", [0, 2])
def test_an_inclusive_reader_at_latest_gets_the_last_message_of_a_batch(
    broker: Broker, client: Client, partitions: int
) -> None:
    topic = broker.topic(partitions)
    name = f"{topic}-partition-1" if partitions else topic
    send_batch(client, name, numbers(0, 5))
    ids = send_batch(client, name, numbers(5, 10))
    for start in (MessageId.latest, ids[-1]):
        reader = client.create_reader(
            topic if start == MessageId.latest else name, start, start_message_id_inclusive=True
        )
        assert reader.has_message_available()
        assert reader.read_next(WAIT_MS).data() == numbers(9, 10)[0]
        assert not reader.has_message_available()
    empty = client.create_reader(broker.topic(), MessageId.latest, start_message_id_inclusive=True)
    assert not empty.has_message_available()
    sent = send_batch(client, empty.topic(), numbers(0, 3))
    assert [empty.read_next(WAIT_MS).message_id() for _ in range(3)] == sent


def test_an_id_that_names_no_topic_moves_no_partition(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, message_router=lambda _message, _count: 1)
    ids = [producer.send(value) for value in numbers(0, 4)]
    foreign = client.create_producer(broker.topic()).send(b"elsewhere")
    refused = (
        MessageId(partition=1, ledger_id=3, entry_id=1),
        MessageId(1, foreign.ledger_id(), foreign.entry_id()),
        MessageId(-1, ids[1].ledger_id(), ids[1].entry_id()),
        MessageId(0, ids[1].ledger_id(), ids[1].entry_id()),
    )
    for wrong in refused:
        with pytest.raises(OperationNotSupported):
            consumer.seek(wrong)
    assert [consumer.receive(WAIT_MS).data() for _ in range(4)] == numbers(0, 4)
    consumer.seek(ids[1])  # as send returned it
    received = [consumer.receive(WAIT_MS) for _ in range(2)]
    assert [message.data() for message in received] == numbers(2, 4)
    consumer.seek(received[0].message_id())
    assert consumer.receive(WAIT_MS).data() == numbers(3, 4)[0]


@pytest.mark.parametrize("of_subscription", [False, True])
def test_a_loop_over_what_is_available_ends_when_its_topic_is_deleted(
    broker: Broker, client: Client, of_subscription: bool
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    send_batch(client, topic, numbers(0, 3))
    assert consumer.receive(WAIT_MS).data() == numbers(0, 1)[0]
    admin = broker.admin()
    if of_subscription:
        admin.topics.unsubscribe(topic, "s", force=True)
    else:
        admin.topics.delete(topic, force=True)
    wait_until(lambda: consumer._core.has_failed, what="the consumer's end")
    with pytest.raises(SubscriptionNotFound if of_subscription else TopicNotFound):
        list(iter(lambda: consumer.has_message_available() and consumer.receive(WAIT_MS), False))


def test_a_closed_consumer_has_nothing_available(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    send_batch(client, topic, numbers(0, 3))
    assert consumer.has_message_available()
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.has_message_available()


def test_unsubscribing_is_refused_while_others_are_connected(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first, second = (client.subscribe(topic, "s", ConsumerType.Shared) for _ in range(2))
    with pytest.raises(BrokerMetadataError, match="other consumers"):
        first.unsubscribe()
    wait_until(first.is_connected, what="it is connected")
    second.close()
    first.unsubscribe()


def test_topics_of_a_missing_namespace_cannot_be_listed(broker: Broker) -> None:
    with pytest.raises(TopicNotFound, match="public/nope"):
        broker.admin().topics.list("public/nope")
