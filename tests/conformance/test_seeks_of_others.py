"""What a seek leaves behind when others seek after it, or its dispatcher dies, over every carrier."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import ConsumerType, SubscriptionMode
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, values

TARGETS = pytest.mark.parametrize("to", ["latest", "later"])


def send_batch(client: Client, topic: str) -> None:
    client.create_producer(topic, batching_enabled=True).send_many(numbers(0, 10))


def target(to: str) -> MessageId | int:
    return MessageId.latest if to == "latest" else int(time.time() * 1000) + 3_600_000


def test_a_seek_into_a_batch_ends_with_a_reset(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    send_batch(client, topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    consumer.seek(receive(consumer, 4)[3].message_id())
    assert values(consumer, 6) == numbers(4, 10)
    broker.admin().topics.reset_cursor(topic, "s", "earliest")
    assert values(consumer, 10) == numbers(0, 10)


def test_a_seek_into_a_batch_ends_with_that_of_another_consumer(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    send_batch(client, topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, initial_position=EARLIEST)
    consumer.seek(receive(consumer, 4)[3].message_id())
    assert values(consumer, 6) == numbers(4, 10)
    other = broker.client().subscribe(topic, "s", ConsumerType.Shared, priority_level=1)
    other.seek(MessageId.earliest)
    assert values(consumer, 10) == numbers(0, 10)


def test_a_seek_into_a_batch_outlives_the_dispatcher(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    send_batch(client, topic)
    reader = client.create_reader(topic, MessageId.earliest)
    fourth = [reader.read_next(WAIT_MS) for _ in range(4)][3]
    reader.seek(fourth.message_id())
    broker.cluster.kill(f"{topic} => readers")
    assert [reader.read_next(WAIT_MS).data() for _ in range(6)] == numbers(4, 10)


@TARGETS
def test_a_reader_goes_on_where_it_sought_after_its_dispatcher_died(
    broker: Broker, client: Client, to: str
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    for value in numbers(0, 20):
        producer.send(value)
    reader = client.create_reader(topic, MessageId.earliest, receiver_queue_size=3)
    assert reader.read_next(WAIT_MS).data() == b"000000"
    reader.seek(target(to))
    broker.cluster.kill(f"{topic} => readers")
    producer.send(b"new")
    assert reader.read_next(WAIT_MS).data() == b"new"


@TARGETS
def test_so_does_everybody_on_a_subscription_that_is_not_durable(
    broker: Broker, client: Client, to: str
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    heard: list[bytes] = []

    def hear(consumer: Consumer, message: Message) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)

    def subscribe(level: int) -> Consumer:
        return broker.client().subscribe(
            topic,
            "s",
            ConsumerType.Shared,
            subscription_mode=SubscriptionMode.NonDurable,
            initial_position=EARLIEST,
            priority_level=level,
            message_listener=hear,
        )

    _, seeking = subscribe(0), subscribe(1)
    for value in numbers(0, 5):
        producer.send(value)
    wait_until(lambda: heard == numbers(0, 5), what="all once")
    seeking.seek(target(to))
    broker.cluster.kill(f"{topic} => readers")
    producer.send(b"new")  # to whoever is back first
    wait_until(lambda: heard[5:], what="the new one")
    assert heard[5:] == [b"new"]


def test_what_is_acknowledged_behind_a_seek_is_not_forgotten_with_what_was_before_it(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, assert_quiet: Callable[[Consumer], None]
) -> None:
    topic = broker.topic()
    heard: list[bytes] = []

    def hear(consumer: Consumer, message: Message) -> None:
        consumer.acknowledge(message)
        heard.append(message.data())

    consumer = client.subscribe(topic, "s", message_listener=hear, ack_grouping_time_ms=60_000)
    producer = client.create_producer(topic)
    for value in numbers(0, 10):
        producer.send(value)
    wait_until(lambda: heard == numbers(0, 10), what="all once")
    answered = PartitionConsumer.call

    def answered_late(*arguments: Any, **named: Any) -> Any:
        answer = answered(*arguments, **named)
        wait_until(lambda: heard == 2 * numbers(0, 10), what="all again, before seek() goes on")
        return answer

    monkeypatch.setattr(PartitionConsumer, "call", answered_late)
    consumer.seek(MessageId.earliest)
    consumer.close()
    assert_quiet(client.subscribe(topic, "s"))


def test_nothing_is_available_behind_what_trimming_took(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.managed_ledger.log.manifest_changes._IDLE_MS", 0)
    broker = make_broker(
        retention_check_interval_in_seconds=1,
        managed_ledger_max_entries_per_ledger=10,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    )
    client, topic = broker.client(), broker.topic()
    kept = client.subscribe(topic, "holds everything back")
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 30)]
    reader = client.create_reader(topic, MessageId.earliest, receiver_queue_size=1)
    assert reader.read_next(WAIT_MS).data() == b"000000"
    kept.unsubscribe()
    end = (ids[-1].ledger_id(), ids[-1].entry_id())
    wait_until(lambda: broker.first_stored(topic) > end, what="all of it is gone")
    while reader.has_message_available():  # what was on its way or is open may come still
        reader.read_next(WAIT_MS)
    producer.send(b"later")
    assert reader.has_message_available()
    # A file that is to go may be there a moment longer.
    assert set(iter(lambda: reader.read_next(WAIT_MS).data(), b"later")) <= set(numbers(0, 30))
