"""Dispatchers that die while a consumer goes on: it sees every message once, acknowledged or not."""

from __future__ import annotations

import random
from collections.abc import Callable

from pulsar_ray.client.client import Client
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import Timeout
from tests.conformance.broker import EARLIEST, QUIET_MS, WAIT_MS, Broker, numbers, receive, values

Make = Callable[..., Broker]
BATCH = 3
SMALL_LEDGERS = {
    "managed_ledger_min_ledger_rollover_time_minutes": 0,
    "default_retention_time_in_minutes": -1,
    "default_retention_size_in_mb": -1,
}


def publish_batch(producer: Producer, first: int) -> None:
    """One entry of `BATCH` messages."""
    for value in numbers(first, first + BATCH):
        producer.send_async(value, lambda *_: None)
    producer.flush()


def test_an_ack_in_the_first_batch_of_a_ledger_covers_the_ledger_before(make_broker: Make) -> None:
    broker = make_broker(managed_ledger_max_entries_per_ledger=3, **SMALL_LEDGERS)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, ack_receipt_enabled=True)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for first in range(0, 4 * BATCH, BATCH):
        publish_batch(producer, first)
    messages = receive(consumer, 4 * BATCH)
    assert messages[-1].message_id().entry_id() == 0
    consumer.acknowledge_cumulative(messages[-2])
    broker.cluster.kill(f"{topic} -> s")
    consumer.close()
    again = client.subscribe(topic, "s")
    assert values(again, BATCH) == numbers(3 * BATCH, 4 * BATCH)


def test_whenever_they_die_nothing_comes_twice(make_broker: Make) -> None:
    broker = make_broker(managed_ledger_max_entries_per_ledger=40, **SMALL_LEDGERS)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    for number in range(4):
        _run(broker, broker.client(), random.Random(seed + number))


def _run(broker: Broker, client: Client, rng: random.Random) -> None:
    topic = broker.topic()
    consumer = client.subscribe(
        topic, "s", initial_position=EARLIEST, receiver_queue_size=50, ack_receipt_enabled=True
    )
    producer = client.create_producer(topic)
    batching = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    sent, got = 0, 0

    def take(timeout_ms: int) -> None:
        nonlocal got
        message = consumer.receive(timeout_ms)
        assert [message.data()] == numbers(got, got + 1), message.message_id()
        got += 1
        if rng.random() < 0.1:
            consumer.acknowledge_cumulative(message)

    for _ in range(rng.randrange(10, 20)):
        kind = rng.random()
        if kind < 0.4:
            producer.send_many(numbers(sent, sent + 20))
            sent += 20
        elif kind < 0.6:
            producer.send(numbers(sent, sent + 1)[0])
            sent += 1
        else:
            publish_batch(batching, sent)
            sent += BATCH
        for _ in range(rng.randrange(25)):
            if got < sent:
                take(WAIT_MS)
        if rng.random() < 0.25:
            broker.cluster.kill(f"{topic} -> s")
    while got < sent:
        take(WAIT_MS)
    try:
        twice = consumer.receive(QUIET_MS)
    except Timeout:
        return
    raise AssertionError(f"{twice.data()!r} came again as {twice.message_id()}")
