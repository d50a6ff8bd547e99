"""Partitions that move between living nodes while everybody publishes and receives, over every carrier."""

from __future__ import annotations

import threading
from collections.abc import Sized
from typing import Any

import pytest

from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import Timeout
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
    ids = broker.cluster.controller("move_topic", topic, store, timeout_s=30)
    return ended(broker, ids)


def ended(broker: Broker, ids: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def are_over() -> bool:
        moves = broker.cluster.controller("moves", timeout_s=30)
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
