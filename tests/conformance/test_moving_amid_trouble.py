"""Partitions that move while other things happen to them, and what moves with them, over every carrier."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_ray.actors.stores import move_carrier, partition_copies
from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import NotAllowedError, Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.stub_actors import HOST
from pulsar_ray.testing.stub_cluster import OTHER_STORE, STORE
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, QUIET_MS, WAIT_MS, Broker, numbers
from tests.conformance.test_moving import elsewhere, ended, move

SERVED_YET, NOBODY_SERVES = "pull", "install"
"""Calls of the target while the source serves, and once it does not."""
HELD_AT = pytest.mark.parametrize("at", [SERVED_YET, NOBODY_SERVES])
THIRD = "third"


@pytest.fixture
def two_nodes(broker: Broker) -> Broker:
    broker.cluster.add_node()
    return broker


def topic_in(broker: Broker, store: str) -> str:
    """A new topic whose partition is in a store, with 20 messages."""
    topic = broker.topic()
    broker.client().create_producer(topic).send_many(numbers(0, 20))
    if broker.cluster.store_of(topic) != store:
        move(broker, topic, store)
    return topic


@contextmanager
def held_move(broker: Broker, topic: str, at: str, target: str) -> Iterator[list[str]]:
    """A move that stands still in a call of its target until the end of the block; gives its id."""
    store = broker.cluster.actors.store_on(HOST if target == STORE else target)
    assert store is not None
    copies = store.parts.copies
    real, is_there, goes_on = getattr(copies, at), threading.Event(), threading.Event()

    async def wait(*arguments: Any) -> Any:
        is_there.set()
        while not goes_on.is_set():
            await asyncio.sleep(0.01)
        return await real(*arguments)

    setattr(copies, at, wait)
    try:
        ids = broker.cluster.controller("call_part", "moves", "move", topic, target, timeout_s=30)
        wait_until(is_there.is_set, what="the move is there")
        yield ids
    finally:
        goes_on.set()
        setattr(copies, at, real)


def read_all(broker: Broker, topic: str, count: int) -> list[bytes]:
    """The data of so many messages from the beginning."""
    reader = broker.client().create_reader(topic, MessageId.earliest)
    return [reader.read_next(WAIT_MS).data() for _ in range(count)]


def check_goes_on(broker: Broker, topic: str, before: int) -> None:
    """What was confirmed is there in order, and more can be published."""
    broker.client().create_producer(topic).send_many(numbers(before, before + 10))
    assert read_all(broker, topic, before + 10) == numbers(0, before + 10)


def during(broker: Broker, topic: str, at: str, target: str, work: Callable[[Admin], None]) -> dict[str, Any]:
    """Do something while a move stands still, and return how that ended.

    What needs the partition waits until it is served again.
    """

    def run() -> None:
        with broker.admin() as admin:
            work(admin)

    working = threading.Thread(target=run)
    with held_move(broker, topic, at, target) as ids:
        working.start()
        if at == SERVED_YET:
            working.join(WAIT_MS / 1000)
            assert not working.is_alive()
    working.join(WAIT_MS / 1000)
    assert not working.is_alive()
    (told,) = ended(broker, ids)
    return told


@HELD_AT
def test_a_topic_that_is_deleted_meanwhile_is_gone_and_may_be_there_anew(two_nodes: Broker, at: str) -> None:
    broker, topic = two_nodes, topic_in(two_nodes, STORE)

    def delete(admin: Admin) -> None:
        admin.topics.delete(topic, force=True)
        admin.topics.create_topic(topic)
        broker.client().create_producer(topic).send_many(numbers(0, 5))

    during(broker, topic, at, OTHER_STORE, delete)
    check_goes_on(broker, topic, 5)


@HELD_AT
def test_a_topic_that_grows_meanwhile_has_all_of_its_partitions(two_nodes: Broker, at: str) -> None:
    broker, topic = two_nodes, two_nodes.topic(1)
    partition = f"{topic}-partition-0"
    broker.client().create_producer(topic).send_many(numbers(0, 20))
    broker.client().subscribe(topic, "audit", initial_position=EARLIEST).close()
    target = elsewhere(broker, partition)
    told = during(
        broker, partition, at, target, lambda admin: admin.topics.update_partitioned_topic(topic, 3)
    )
    assert told["state"] == "moved"
    broker.client().create_producer(topic).send_many(numbers(20, 50))
    consumer = broker.client().subscribe(topic, "audit")
    assert {consumer.receive(WAIT_MS).data() for _ in range(50)} == set(numbers(0, 50))


def test_what_is_truncated_meanwhile_does_not_come_back(two_nodes: Broker) -> None:
    broker, topic = two_nodes, topic_in(two_nodes, STORE)
    with held_move(broker, topic, SERVED_YET, OTHER_STORE) as ids, broker.admin() as admin:
        admin.topics.truncate(topic)
        broker.client().create_producer(topic).send_many(numbers(20, 30))
    assert [each["state"] for each in ended(broker, ids)] == ["moved"]
    assert read_all(broker, topic, 10) == numbers(20, 30)


@HELD_AT
def test_a_target_that_is_drained_meanwhile_gets_nothing(two_nodes: Broker, at: str) -> None:
    broker, topic = two_nodes, topic_in(two_nodes, STORE)
    with held_move(broker, topic, at, OTHER_STORE) as ids, broker.admin() as admin:
        admin.brokers.drain(OTHER_STORE, wait=False)
    (told,) = ended(broker, ids)
    if told["state"] == "moved":  # it was too late to break it off, so it leaves again
        wait_until(lambda: broker.cluster.store_of(topic) == STORE, what="it is back")
    else:
        assert f"store {OTHER_STORE} is to become empty" in told["reason"]
    check_goes_on(broker, topic, 20)
    assert broker.cluster.store_of(topic) == STORE


@HELD_AT
def test_a_target_that_dies_meanwhile_leaves_all_at_the_source(two_nodes: Broker, at: str) -> None:
    broker, topic = two_nodes, topic_in(two_nodes, STORE)
    with held_move(broker, topic, at, OTHER_STORE) as ids:
        broker.cluster.lose_node(OTHER_STORE)
    (told,) = ended(broker, ids)
    assert told["state"] == "broken off"
    assert broker.cluster.store_of(topic) == STORE
    check_goes_on(broker, topic, 20)


@HELD_AT
def test_a_source_that_dies_meanwhile_has_all_when_it_is_back(two_nodes: Broker, at: str) -> None:
    broker, topic = two_nodes, topic_in(two_nodes, OTHER_STORE)
    with held_move(broker, topic, at, STORE) as ids:
        broker.cluster.lose_node(OTHER_STORE)
    (told,) = ended(broker, ids)
    assert (told["state"], bool(told["reason"])) == ("broken off", True)
    assert broker.cluster.store_of(topic) == OTHER_STORE
    broker.cluster.add_node(OTHER_STORE)
    check_goes_on(broker, topic, 20)


def test_a_target_without_room_is_named_and_all_stays(
    two_nodes: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, topic = two_nodes, topic_in(two_nodes, STORE)
    full = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(total=10**12, free=10**6))
    monkeypatch.setattr(partition_copies, "shutil", full)
    with broker.admin() as admin:
        (told,) = admin.topics.move(topic, OTHER_STORE)
    assert not told.is_moved
    assert "has 1,000,000 bytes free" in told.reason
    assert "free space there, or move it elsewhere" in told.reason
    assert broker.cluster.store_of(topic) == STORE
    check_goes_on(broker, topic, 20)


def test_one_that_moves_is_not_moved_elsewhere_at_the_same_time(two_nodes: Broker) -> None:
    broker, topic = two_nodes, topic_in(two_nodes, STORE)
    broker.cluster.add_node(THIRD)
    with held_move(broker, topic, SERVED_YET, OTHER_STORE) as ids, broker.admin() as admin:
        assert (
            broker.cluster.controller("call_part", "moves", "move", topic, OTHER_STORE, timeout_s=30) == ids
        )
        with pytest.raises(NotAllowedError, match="is moving to store beside already"):
            admin.topics.move(topic, THIRD)
    assert [each["state"] for each in ended(broker, ids)] == ["moved"]
    with broker.admin() as admin:
        assert [each.is_moved for each in admin.topics.move(topic, THIRD)] == [True]
    check_goes_on(broker, topic, 20)


def test_a_message_that_was_sent_before_is_known_behind_the_move(two_nodes: Broker) -> None:
    broker, topic = two_nodes, two_nodes.topic()
    broker.cluster.override(topic, broker_deduplication_enabled=True)
    first = broker.client().create_producer(topic, producer_name="named")
    for number in range(5):
        first.send(b"%06d" % number, sequence_id=number)
    first.close()
    move(broker, topic, elsewhere(broker, topic))
    again = broker.client().create_producer(topic, producer_name="named")
    assert again.last_sequence_id() == 4
    for number in range(3, 7):
        again.send(b"%06d" % number, sequence_id=number)
    assert read_all(broker, topic, 7) == numbers(0, 7)


def test_messages_that_wait_for_their_time_come_at_it_behind_the_move(
    two_nodes: Broker, patience: int
) -> None:
    broker, topic = two_nodes, two_nodes.topic()
    consumer = broker.client().subscribe(topic, "audit", ConsumerType.Shared, initial_position=EARLIEST)
    producer = broker.client().create_producer(topic)
    producer.send(b"late", deliver_after=timedelta(seconds=1.5) * patience)
    producer.send(b"at once")
    message = consumer.receive(WAIT_MS)
    assert message.data() == b"at once"
    consumer.acknowledge(message)
    move(broker, topic, elsewhere(broker, topic))
    late = consumer.receive(WAIT_MS)
    assert late.data() == b"late"
    consumer.acknowledge(late)


def test_parts_of_batches_that_were_acknowledged_do_not_come_again(two_nodes: Broker) -> None:
    broker, topic = two_nodes, two_nodes.topic()
    consumer = broker.client().subscribe(
        topic, "audit", ConsumerType.Shared, initial_position=EARLIEST, batch_index_ack_enabled=True
    )
    broker.client().create_producer(topic).send_many(numbers(0, 30))
    got = [consumer.receive(WAIT_MS) for _ in range(30)]
    for message in got[::3]:
        consumer.acknowledge(message)
    consumer.close()
    move(broker, topic, elsewhere(broker, topic))
    again = broker.client().subscribe(topic, "audit", ConsumerType.Shared, batch_index_ack_enabled=True)
    left = {again.receive(WAIT_MS).data() for _ in range(20)}
    assert left == {message.data() for message in got} - {message.data() for message in got[::3]}


def test_a_message_that_fails_before_and_behind_the_move_becomes_a_dead_letter(two_nodes: Broker) -> None:
    broker, topic = two_nodes, two_nodes.topic()
    letters = broker.client().subscribe(f"{topic}-audit-DLQ", "letters", initial_position=EARLIEST)
    consumer = broker.client().subscribe(
        topic,
        "audit",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=10,
        dead_letter_policy=ConsumerDeadLetterPolicy(max_redeliver_count=3),
    )
    broker.client().create_producer(topic).send(b"bad")
    counts = [-1]
    while counts[-1] < 3:
        message = consumer.receive(WAIT_MS)
        counts.append(message.redelivery_count())
        if len(counts) == 3:
            move(broker, topic, elsewhere(broker, topic))
        consumer.negative_acknowledge(message)
    assert counts == sorted(counts), "failures of before count on"
    assert len(counts) <= 6, "the move itself may let it come again once"
    assert letters.receive(WAIT_MS).data() == b"bad"
    with pytest.raises(Timeout):
        consumer.receive(QUIET_MS)


def test_readers_and_tables_go_on_in_order_while_their_partition_moves(two_nodes: Broker) -> None:
    broker, topic = two_nodes, two_nodes.topic()
    producer = broker.client().create_producer(topic)
    producer.send_many(numbers(0, 100))
    reader = broker.client().create_reader(topic, MessageId.earliest)
    consumer = broker.client().subscribe(topic, "tables", initial_position=EARLIEST)
    read, tables = [reader.read_next(WAIT_MS).data()], list[bytes]()
    for number in range(3):
        move(broker, topic, elsewhere(broker, topic))
        producer.send_many(numbers(100 + 50 * number, 150 + 50 * number))
        read += [reader.read_next(WAIT_MS).data() for _ in range(30)]
        table = consumer.receive_arrow(max_messages=60, timeout_millis=WAIT_MS)
        tables += table.column("value").to_pylist()
        consumer.acknowledge_arrow(table)
    read += [reader.read_next(WAIT_MS).data() for _ in range(250 - len(read))]
    assert read == numbers(0, 250)
    while set(tables) != set(numbers(0, 250)):
        table = consumer.receive_arrow(max_messages=60, timeout_millis=WAIT_MS)
        tables += table.column("value").to_pylist()
        consumer.acknowledge_arrow(table)


def test_a_reader_that_slept_until_the_former_files_were_gone_misses_nothing(
    two_nodes: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_carrier, "KEEP_SOURCE_S", 0.0)  # gone before anybody can attach again
    broker, topic = two_nodes, two_nodes.topic()
    values = [b"%d " % number + bytes(5_000) for number in range(60)]
    producer = broker.client().create_producer(topic, batching_enabled=True, batching_max_messages=4)
    for value in values:
        producer.send_async(value, None)
    producer.flush()
    reader = broker.client().create_reader(topic, MessageId.earliest, receiver_queue_size=50)
    read = [reader.read_next(WAIT_MS).data() for _ in range(6)]
    for _ in range(2):
        move(broker, topic, elsewhere(broker, topic))
        read += [reader.read_next(WAIT_MS).data() for _ in range(10)]
    read += [reader.read_next(WAIT_MS).data() for _ in range(len(values) - len(read))]
    assert read == values
    assert not reader.has_message_available()


def test_nodes_are_emptied_switched_off_and_back_in_turn(two_nodes: Broker) -> None:
    broker, topic = two_nodes, two_nodes.topic(6)
    for host in (THIRD, "fourth"):
        broker.cluster.add_node(host)
    producer = broker.client().create_producer(topic)
    consumer = broker.client().subscribe(topic, "audit", initial_position=EARLIEST)
    sent = 0
    with broker.admin() as admin:
        admin.brokers.balance()
        for host in (OTHER_STORE, THIRD, "fourth"):
            admin.brokers.drain(host)
            broker.cluster.lose_node(host)
            producer.send_many(numbers(sent, sent + 30))
            broker.cluster.add_node(host)
            admin.brokers.undrain(host)
            moves = admin.brokers.balance()
            assert [move.reason for move in moves if not move.is_moved] == []
            producer.send_many(numbers(sent + 30, sent + 60))
            sent += 60
    assert {consumer.receive(WAIT_MS).data() for _ in range(sent)} == set(numbers(0, sent))
