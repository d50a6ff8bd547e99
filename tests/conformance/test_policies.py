"""Policies of a topic that change while its clients are connected, over every carrier."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.client.client import Client
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker, numbers, values

MakeBroker = Callable[..., Broker]


def test_rollover_and_retention_change_while_a_topic_runs(make_broker: MakeBroker) -> None:
    broker = make_broker(retention_check_interval_in_seconds=1, default_retention_time_in_minutes=-1)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    broker.cluster.override(
        topic, managed_ledger_max_entries_per_ledger=2, managed_ledger_min_ledger_rollover_time_minutes=0
    )
    ids = [producer.send(value) for value in numbers(0, 6)]
    assert len({message_id.ledger_id() for message_id in ids}) == 3
    assert values(consumer, 6, acknowledge=True) == numbers(0, 6)
    assert broker.first_stored(topic) == (ids[0].ledger_id(), 0), "kept for ever"
    broker.cluster.override(topic, default_retention_time_in_minutes=0)
    wait_until(
        lambda: broker.first_stored(topic) == (ids[4].ledger_id(), 0), what="consumed ledgers are gone"
    )
    more = [producer.send(value) for value in numbers(6, 16)]
    assert len({message_id.ledger_id() for message_id in more}) == 1, "the broker's rollover holds again"


def test_a_raised_limit_of_unacknowledged_messages_lets_more_out(client: Client, broker: Broker) -> None:
    topic = broker.topic()
    broker.cluster.override(topic, max_unacked_messages_per_consumer=5)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    for value in numbers(0, 30):
        producer.send(value)
    wait_until(lambda: broker.unacked(topic, "s") == [5], what="the limit is reached")
    broker.cluster.override(topic, max_unacked_messages_per_subscription=12)
    wait_until(lambda: broker.unacked(topic, "s") == [12], what="the other limit is reached")
    broker.cluster.kill(broker.cluster.dispatcher_of(topic, "s").address)
    wait_until(lambda: broker.unacked(topic, "s") == [12], what="the restarted dispatcher has the limit")
    broker.cluster.override(topic)
    assert values(consumer, 30) == numbers(0, 30)
