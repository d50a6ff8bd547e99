"""What dispatchers are not told at once: nothing that anybody sees depends on when they hear of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import WAIT_MS, Broker, numbers, values

SUBSCRIPTIONS = [f"s{number}" for number in range(4)]


@pytest.fixture
def consumers(
    broker: Broker, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Consumer]:
    """Of several subscriptions, which are told of messages long after they were stored."""
    monkeypatch.setattr("pulsar_ray.broker.partition.followers.PAUSE_S", 1.0)
    monkeypatch.setattr("pulsar_ray.broker.partition.followers.MAX_PAUSE_S", 1.0)
    return {name: client.subscribe(topic, name, ConsumerType.Shared) for name in SUBSCRIPTIONS}


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic()


def backlogs(broker: Broker, topic: str) -> dict[str, Any]:
    subscriptions = broker.admin().topics.stats(topic)["subscriptions"]
    return {name: subscriptions[name]["msgBacklog"] for name in SUBSCRIPTIONS}


@pytest.mark.parametrize("how", ["each", "up to the last", "by receipt"])
def test_who_published_may_acknowledge_before_the_dispatcher_hears_of_it(
    broker: Broker,
    client: Client,
    topic: str,
    consumers: dict[str, Consumer],
    how: str,
    assert_quiet: Callable[[Consumer], None],
) -> None:
    kind = ConsumerType.Shared if how == "each" else ConsumerType.Exclusive
    consumer = client.subscribe(topic, how, kind, ack_receipt_enabled=how == "by receipt")
    producer = client.create_producer(topic)
    producer.send(b"told at once")
    ids = [producer.send(value) for value in numbers(0, 10)]
    consumer.acknowledge(first_id(consumer))
    if how == "up to the last":
        consumer.acknowledge_cumulative(ids[-1])
    for message_id in ids if how != "up to the last" else ():
        consumer.acknowledge(message_id)
    consumer.close()
    assert_quiet(client.subscribe(topic, how, kind))


def first_id(consumer: Consumer) -> MessageId:
    """Of the message that the dispatcher was told of at once."""
    message = consumer.receive(WAIT_MS)
    assert message.data() == b"told at once"
    return message.message_id()


def test_stats_know_what_was_confirmed(broker: Broker, topic: str, consumers: dict[str, Consumer]) -> None:
    producer = broker.client().create_producer(topic)
    for count in range(1, 5):
        producer.send(b"x")
        assert backlogs(broker, topic) == dict.fromkeys(SUBSCRIPTIONS, count)


def test_a_seek_finds_what_was_confirmed(
    client: Client, topic: str, consumers: dict[str, Consumer], assert_quiet: Callable[[Consumer], None]
) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 5)]
    consumers["s1"].seek(ids[2])
    assert values(consumers["s1"], 2) == numbers(3, 5)
    consumers["s2"].seek(MessageId.latest)
    assert_quiet(consumers["s2"])
