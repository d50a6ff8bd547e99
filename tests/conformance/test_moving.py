"""Partitions that move between living nodes while everybody publishes and receives, over every carrier."""

from __future__ import annotations

import threading
from collections.abc import Sized
from typing import Any

import pytest

from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import NotAllowedError, ServiceUnitNotReady, Timeout, TopicNotFound
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.stub_cluster import OTHER_STORE, STORE
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers

MORE = 20


@pytest.fixture
def two_nodes(broker: Broker) -> Broker:
    broker.cluster.add_node()
    return broker


def elsewhere(broker: Broker, partition: str) -> str:
    """The store that a partition is not in."""
    return STORE if broker.cluster.store_of(partition) == OTHER_STORE else OTHER_STORE


def wait_for_more(sent: Sized) -> None:
    """Wait until more messages are published."""
    count = len(sent)
    wait_until(lambda: len(sent) > count + MORE, what="messages are published")


def move(broker: Broker, topic: str, store: str) -> list[dict[str, Any]]:
    """Move a topic, and wait until that is over."""
    ids = broker.cluster.controller("call_part", "moves", "move", topic, store, timeout_s=30)
    return ended(broker, ids)


def ended(broker: Broker, ids: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def are_over() -> bool:
        moves = broker.cluster.controller("call_part", "moves", "describe", timeout_s=30)
        found[:] = [each for each in moves if each["moveId"] in ids and each["isOver"]]
        return len(found) == len(ids)

    wait_until(are_over, what="the moves are over")
    return found


def test_everything_is_as_before_behind_a_move(two_nodes: Broker) -> None:
    broker, topic = two_nodes, two_nodes.topic()
    client = broker.client()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "audit", initial_position=EARLIEST)
    ids = [producer.send(value) for value in numbers(0, 50)]
    first = [consumer.receive(WAIT_MS) for _ in range(30)]
    for message in first[::2]:
        consumer.acknowledge(message)
    wait_until(lambda: sum(broker.unacked(topic, "audit")) <= 35, what="acknowledged")
    place = elsewhere(broker, topic)
    (moved,) = move(broker, topic, place)
    assert (moved["state"], moved["reason"]) == ("moved", "")
    assert broker.cluster.store_of(topic) == place
    ids += [producer.send(value) for value in numbers(50, 70)]
    consumer.close()
    again = client.subscribe(topic, "audit")
    got = [again.receive(WAIT_MS) for _ in range(55)]
    assert {message.data() for message in got} == set(numbers(0, 70)) - {m.data() for m in first[::2]}
    assert {message.message_id() for message in got} <= set(ids)
    reader = client.create_reader(topic, MessageId.earliest)
    assert [reader.read_next(WAIT_MS).message_id() for _ in ids] == ids


def test_there_and_back_while_all_publish_and_receive(two_nodes: Broker) -> None:
    broker, topic = two_nodes, two_nodes.topic()
    client = broker.client()
    producer = client.create_producer(topic)
    consumer = broker.client().subscribe(topic, "audit", ConsumerType.KeyShared)
    stop, got = threading.Event(), list[Message]()
    sent: list[tuple[bytes, MessageId]] = []

    def send() -> None:
        while not stop.is_set():
            value = b"%d" % len(sent)
            sent.append((value, producer.send(value, partition_key=f"k{len(sent) % 5}")))

    def receive() -> None:
        while not stop.is_set() or len({m.data() for m in got}) < len(sent):
            try:
                got.append(consumer.receive(200))
            except Timeout:
                continue
            consumer.acknowledge(got[-1])

    threads = [threading.Thread(target=work) for work in (send, receive)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        wait_for_more(sent)
        place = elsewhere(broker, topic)
        assert [each["state"] for each in move(broker, topic, place)] == ["moved"]
        assert broker.cluster.store_of(topic) == place
    wait_for_more(sent)
    stop.set()
    for thread in threads:
        thread.join(WAIT_MS / 1000)
        assert not thread.is_alive()
    reader = broker.client().create_reader(topic, MessageId.earliest)
    assert [(m.data(), m.message_id()) for m in (reader.read_next(WAIT_MS) for _ in sent)] == sent
    for key in range(5):
        of_key = [int(m.data()) for m in got if m.partition_key() == f"k{key}" and not m.redelivery_count()]
        assert of_key == sorted(of_key)


def test_a_drained_node_becomes_empty_and_takes_nothing_new(two_nodes: Broker) -> None:
    broker, topics = two_nodes, [two_nodes.topic(), two_nodes.topic(3)]
    producers = [broker.client().create_producer(topic) for topic in topics]
    consumers = [broker.client().subscribe(topic, "audit") for topic in topics]
    for number, producer in enumerate(producers):
        producer.send_many(numbers(number * 100, number * 100 + 50))
    left: list[int] = []
    with broker.admin() as admin:
        assert all(each.state == "serving" for each in admin.brokers.nodes())
        admin.brokers.drain("beside", shown=left.append)
        (drained,) = [each for each in admin.brokers.nodes() if each.store_id == OTHER_STORE]
        assert (drained.state, drained.reason) == ("drained", "nothing lies there any more: its node may go")
        names = [topics[0], *(f"{topics[1]}-partition-{each}" for each in range(3))]
        assert {broker.cluster.store_of(name) for name in names} == {STORE}
        assert broker.cluster.store_of(broker.topic()) == STORE
        with pytest.raises(ServiceUnitNotReady, match="last one"):
            admin.brokers.drain("here")
        moved = admin.brokers.moves()
        assert moved
        assert all(each.is_moved and each.target == STORE for each in moved)
        admin.brokers.undrain("beside")
        assert all(each.state == "serving" for each in admin.brokers.nodes())
        assert all(each.is_moved and each.target == OTHER_STORE for each in admin.brokers.balance())
        counts = [each.partitions for each in admin.brokers.nodes()]
        assert max(counts) - min(counts) <= 1
        assert admin.brokers.balance() == []
    for number, (producer, consumer) in enumerate(zip(producers, consumers, strict=True)):
        producer.send_many(numbers(number * 100 + 50, number * 100 + 60))
        got = {message.data() for message in (consumer.receive(WAIT_MS) for _ in range(60))}
        assert got == set(numbers(number * 100, number * 100 + 60))


def test_one_that_ray_drains_becomes_empty_by_itself(two_nodes: Broker) -> None:
    broker, topic = two_nodes, two_nodes.topic(4)
    broker.client().create_producer(topic).send_many(numbers(0, 50))
    broker.cluster.drain_by_ray()
    names = [f"{topic}-partition-{each}" for each in range(4)]
    wait_until(lambda: {broker.cluster.store_of(name) for name in names} == {STORE}, what="all has moved")
    reader = broker.client().create_reader(topic, MessageId.earliest)
    assert {reader.read_next(WAIT_MS).data() for _ in range(50)} == set(numbers(0, 50))


def test_administration_of_moves_names_what_is_wrong(two_nodes: Broker) -> None:
    topic = two_nodes.topic()
    with two_nodes.admin() as admin:
        with pytest.raises(NotAllowedError, match="'nowhere' does not name one store"):
            admin.topics.move(topic, "nowhere")
        with pytest.raises(TopicNotFound):
            admin.topics.move("missing", "here")
        place = elsewhere(two_nodes, topic)
        (moved,) = admin.topics.move(topic, place)
        assert (moved.is_moved, moved.partition, moved.target) == (True, topic, place)
        assert admin.topics.move(topic, place) == []
        stores_nothing = "non-persistent://public/default/gone"
        two_nodes.client().create_producer(stores_nothing)
        with pytest.raises(NotAllowedError, match="nothing of"):
            admin.topics.move(stores_nothing, place)


def test_a_controller_that_is_killed_meanwhile_leaves_it_at_one_place(two_nodes: Broker) -> None:
    broker, topic = two_nodes, two_nodes.topic()
    producer = broker.client().create_producer(topic)
    sent: list[MessageId] = []
    for _ in range(5):
        sent += [producer.send(value) for value in numbers(len(sent), len(sent) + 20)]
        broker.cluster.controller("call_part", "moves", "move", topic, elsewhere(broker, topic), timeout_s=30)
        broker.cluster.kill_controller()
    sent += [producer.send(value) for value in numbers(len(sent), len(sent) + 20)]
    reader = broker.client().create_reader(topic, MessageId.earliest)
    assert [reader.read_next(WAIT_MS).message_id() for _ in sent] == sent
    move(broker, topic, elsewhere(broker, topic))
    assert producer.send(b"and on") > sent[-1]
