"""Durable and NonDurable subscriptions, also under one name, over every carrier."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import ConsumerBusy
from pulsar_ray.model.enums import ConsumerType, InitialPosition, SubscriptionMode
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name
from tests.conformance.broker import EARLIEST, Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]
NON_DURABLE = SubscriptionMode.NonDurable
TYPES = pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])


@TYPES
def test_both_modes_of_one_name_are_independent(
    broker: Broker, client: Client, kind: ConsumerType, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    kept = client.subscribe(topic, "s", kind)
    passing = client.subscribe(topic, "s", kind, subscription_mode=NON_DURABLE)
    for value in numbers(0, 5):
        producer.send(value)
    assert values(passing, 5, acknowledge=True) == numbers(0, 5)
    assert values(kept, 3, acknowledge=True) == numbers(0, 3)
    passing.unsubscribe()
    again = client.subscribe(topic, "s", kind, subscription_mode=NON_DURABLE)
    assert values(kept, 2) == numbers(3, 5)
    kept.close()
    producer.send(b"last")
    assert values(again, 1) == [b"last"]
    kept = client.subscribe(topic, "s", kind)
    assert values(kept, 3) == [*numbers(3, 5), b"last"]
    kept.unsubscribe()
    producer.send(b"after")
    assert values(again, 1) == [b"after"]
    assert_quiet(again)


@TYPES
def test_it_starts_where_it_is_told_and_is_forgotten_with_its_last_consumer(
    broker: Broker, client: Client, kind: ConsumerType, assert_quiet: Quiet
) -> None:
    topic, admin = broker.topic(), broker.admin()
    producer = client.create_producer(topic)
    for value in numbers(0, 5):
        producer.send(value)
    for _ in range(2):
        consumer = client.subscribe(
            topic, "s", kind, subscription_mode=NON_DURABLE, initial_position=EARLIEST
        )
        assert values(consumer, 5, acknowledge=True) == numbers(0, 5)
        consumer.close()
    consumer = client.subscribe(
        topic, "s", kind, subscription_mode=NON_DURABLE, initial_position=InitialPosition.Latest
    )
    assert_quiet(consumer)
    stats = admin.topics.stats(topic)["subscriptions"]["s"]
    assert (stats["durable"], stats["type"]) == (False, kind.name)
    consumer.close()
    wait_until(lambda: admin.topics.stats(topic)["subscriptions"] == {}, what="nothing is left of it")


def test_its_type_decides_who_may_join_and_who_gets_what(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    alone = client.subscribe(topic, "one", subscription_mode=NON_DURABLE)
    with pytest.raises(ConsumerBusy):
        broker.client().subscribe(topic, "one", subscription_mode=NON_DURABLE)
    shared = [
        broker.client().subscribe(
            topic, "many", ConsumerType.Shared, subscription_mode=NON_DURABLE, receiver_queue_size=3
        )
        for _ in range(2)
    ]
    for value in numbers(0, 6):
        producer.send(value)
    subscriptions = broker.admin().topics
    wait_until(
        lambda: subscriptions.stats(topic)["subscriptions"]["many"]["unackedMessages"] == 6,
        what="full queues",
    )
    first, second = values(shared[0], 3), receive(shared[1], 3)
    assert sorted([*first, *(message.data() for message in second)]) == numbers(0, 6)
    for message in second:
        shared[1].acknowledge(message)
    # What a consumer leaves unacknowledged goes to the other one.
    shared[0].close()
    assert sorted(values(shared[1], 3)) == sorted(first)
    assert values(alone, 6) == numbers(0, 6)


def test_negative_acknowledgment_and_seek_work_on_it(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(
        topic, "s", ConsumerType.Shared, subscription_mode=NON_DURABLE, negative_ack_redelivery_delay_ms=50
    )
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 4)]
    messages = receive(consumer, 4)
    for message in messages[1:]:
        consumer.acknowledge(message)
    consumer.negative_acknowledge(messages[0])
    (again,) = receive(consumer, 1)
    assert (again.data(), again.redelivery_count()) == (b"000000", 1)
    consumer.seek(ids[1])
    assert values(consumer, 2) == numbers(2, 4)
    assert_quiet(consumer)


@pytest.mark.parametrize("has_received", [False, True])
def test_it_goes_on_when_its_dispatcher_dies(broker: Broker, client: Client, has_received: bool) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"before")
    consumer = client.subscribe(topic, "s", subscription_mode=NON_DURABLE)
    if has_received:
        producer.send(b"first")
        assert values(consumer, 1) == [b"first"]
    address = dispatcher_name(topic, "s", durable=False)
    broker.cluster.kill(address, keep_down=True)
    # "latest" was when it subscribed, not when it comes back.
    producer.send(b"meanwhile")
    broker.cluster.allow(address)
    assert values(consumer, 1) == [b"meanwhile"]


def test_it_holds_nothing_back(broker: Broker, client: Client) -> None:
    topic, admin = broker.topic(), broker.admin()
    client.subscribe(topic, "s", subscription_mode=NON_DURABLE)
    client.create_producer(topic).send(b"x")
    assert admin.topics.stats(topic)["backlogSize"] == 0
    partition = broker.cluster.partition(topic).server
    assert partition is not None
    assert partition.stats()["subscriptions"] == []
