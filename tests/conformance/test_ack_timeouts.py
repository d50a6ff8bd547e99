"""What an application keeps for longer than its ack timeout comes again, over every carrier."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import MultiplierRedeliveryBackoff
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import WAIT_MS, Broker, numbers, receive, send_batch
from tests.conformance.event_loop import on_a_loop

Quiet = Callable[[Consumer], None]
TIMES: dict[str, Any] = {"unacked_messages_timeout_ms": 1000, "ack_timeout_tick_time_ms": 100}


def counts(messages: list[Message]) -> list[tuple[bytes, int]]:
    return [(message.data(), message.redelivery_count()) for message in messages]


def test_what_was_neither_acknowledged_nor_failed_comes_again(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **TIMES)
    client.create_producer(topic).send_many(numbers(0, 6))
    started = time.monotonic()
    messages = receive(consumer, 6)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[4].message_id())
    consumer.negative_acknowledge(messages[2])
    again = receive(consumer, 3)
    assert time.monotonic() - started >= 1.0, "it came before its time"
    assert sorted(counts(again)) == [(b"000001", 1), (b"000003", 1), (b"000005", 1)]
    for message in again:
        consumer.acknowledge(message)
    assert_quiet(consumer)


def test_what_waits_in_the_queue_has_not_begun_to_time_out(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **TIMES)
    client.create_producer(topic).send_many(numbers(0, 3))
    assert counts(receive(consumer, 1)) == [(b"000000", 0)]
    with broker.admin() as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgOutCounter"] >= 4,
            what="the first message was delivered again",
        )
    assert counts(receive(consumer, 3)) == [(b"000001", 0), (b"000002", 0), (b"000000", 1)]


def send_singly(client: Client, topic: str, sent: list[bytes]) -> None:
    producer = client.create_producer(topic)
    for value in sent:
        producer.send(value)


def send_together(client: Client, topic: str, sent: list[bytes]) -> None:
    client.create_producer(topic).send_many(sent)


def acknowledge_each(consumer: Consumer, messages: list[Message]) -> None:
    for message in messages:
        consumer.acknowledge(message)


def acknowledge_ids(consumer: Consumer, messages: list[Message]) -> None:
    for message in reversed(messages):
        consumer.acknowledge(message.message_id())


def acknowledge_last(consumer: Consumer, messages: list[Message]) -> None:
    consumer.acknowledge_cumulative(messages[-1])


@pytest.mark.parametrize("send", [send_singly, send_batch])
@pytest.mark.parametrize(
    ("consumer_type", "acknowledge", "has_receipts"),
    [
        (ConsumerType.Shared, acknowledge_each, False),
        (ConsumerType.Shared, acknowledge_ids, True),
        (ConsumerType.Exclusive, acknowledge_last, False),
        (ConsumerType.Exclusive, acknowledge_each, True),
    ],
)
def test_what_is_acknowledged_late_is_not_handed_out_again(
    broker: Broker,
    client: Client,
    assert_quiet: Quiet,
    consumer_type: ConsumerType,
    acknowledge: Callable[[Consumer, list[Message]], None],
    send: Callable[[Client, str, list[bytes]], object],
    has_receipts: bool,
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", consumer_type, ack_receipt_enabled=has_receipts, **TIMES)
    send(client, topic, numbers(0, 20))
    messages = receive(consumer, 20)
    with broker.admin() as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgOutCounter"] >= 40,
            what="all were delivered again",
        )
    acknowledge(consumer, messages)
    assert_quiet(consumer)
    assert not consumer.has_message_available()
    with broker.admin() as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0,
            what="the acknowledgments",
        )


@pytest.mark.parametrize("send", [send_singly, send_together, send_batch])
def test_copies_are_left_out_of_which_one_was_handed_out_already(
    broker: Broker, client: Client, assert_quiet: Quiet, send: Callable[[Client, str, list[bytes]], object]
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **TIMES)
    send(client, topic, numbers(0, 20))
    messages = receive(consumer, 20)
    again = consumer.receive(WAIT_MS)
    assert again.redelivery_count() == 1
    acknowledge_each(consumer, messages)
    assert_quiet(consumer)


@pytest.mark.parametrize("how", ["batch_receive", "receive_arrow"])
def test_bulk_receives_time_out_as_well(broker: Broker, client: Client, how: str) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **TIMES)
    send_batch(client, topic, numbers(0, 4))
    if how == "batch_receive":
        consumer.acknowledge(next(batch for _ in range(100) if (batch := list(consumer.batch_receive())))[1])
    else:
        consumer.acknowledge_arrow(consumer.receive_arrow().slice(1, 1))
    again = receive(consumer, 3)
    assert [(m.data(), m.failures) for m in again] == [(b"000000", 1), (b"000002", 1), (b"000003", 1)]


def test_a_listener_and_an_ordered_subscription_time_out_as_well(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    heard: queue.SimpleQueue[tuple[bytes, int]] = queue.SimpleQueue()
    done = threading.Event()

    def listen(consumer: Consumer, message: Message) -> None:
        heard.put((message.data(), message.redelivery_count()))
        if message.redelivery_count():
            consumer.acknowledge_cumulative(message)
            done.set()

    client.subscribe(topic, "s", message_listener=listen, **TIMES)
    producer = client.create_producer(topic)
    producer.send(b"a")
    producer.send(b"b")
    assert done.wait(20)
    assert [heard.get(timeout=20) for _ in range(3)] == [(b"a", 0), (b"b", 0), (b"a", 1)]


def test_the_backoff_comes_on_top(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        ack_timeout_redelivery_backoff=MultiplierRedeliveryBackoff(300, 600, 2),
        **TIMES,
    )
    client.create_producer(topic).send(b"x")
    for count, least_s in ((0, 0.0), (1, 1.3), (2, 1.6)):
        started = time.monotonic()
        assert counts(receive(consumer, 1)) == [(b"x", count)]
        assert time.monotonic() - started >= least_s


@on_a_loop
async def test_the_asyncio_client_times_out_as_well(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(topic, "s", ConsumerType.Shared, **TIMES)
        producer = await client.create_producer(topic)
        for value in numbers(0, 3):
            await producer.send(value)
        messages = [await consumer.receive(20_000) for _ in range(3)]
        await consumer.acknowledge(messages[1])
        again = [await consumer.receive(20_000) for _ in range(2)]
        assert sorted(counts(again)) == [(b"000000", 1), (b"000002", 1)]
