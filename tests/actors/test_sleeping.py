"""Actors that nobody uses leave, and come back when somebody does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_ray import Client, Consumer, ConsumerType, InitialPosition, Message
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.this_ray import running_names
from tests.running_broker import Broker

DEADLINE_S = 60.0
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(tmp_path_factory.mktemp("broker"), idle_actor_passivation_seconds=0.5)
    try:
        yield started
    finally:
        started.close()


def actors_of(topic: str) -> list[str]:
    return [name for name in running_names() if topic in name]


def wait_asleep(topic: str) -> None:
    wait_until(lambda: not actors_of(topic), DEADLINE_S, f"the sleep of {topic}")


def test_a_topic_that_was_used_sleeps_and_wakes(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    for number in range(6):
        producer.send(b"%d" % number)
    for _ in range(6):
        message = consumer.receive(WAIT_MS)
        if int(message.data()) % 2:
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message)
    again = [consumer.receive(WAIT_MS) for _ in range(3)]
    assert [message.redelivery_count() for message in again] == [1, 1, 1]
    consumer.close()
    producer.close()
    wait_asleep(topic)
    client.create_producer(topic).send(b"6")
    consumer = subscribe(client, topic)
    got = {message.data(): message.redelivery_count() for message in receive(consumer, 4)}
    assert sorted(got) == [b"0", b"2", b"4", b"6"]
    assert got.pop(b"6") == 0
    assert all(got.values())


def subscribe(client: Client, topic: str) -> Consumer:
    return client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=10,
    )


def receive(consumer: Consumer, count: int) -> list[Message]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]
