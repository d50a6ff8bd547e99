"""Measure moving poison messages to a dead letter topic.

Beside it the same by hand: receive, `send_async` without batching, acknowledge.
"""

from __future__ import annotations

import threading
from typing import Any

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import p50, rate, timed
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 100
ROUNDS = 3


def run(env: Environment) -> list[Row]:
    """All messages have failed once more than allowed before the clock starts."""
    count = env.count(100_000, 5_000)
    # All of them are held at once before the clock starts.
    with env.broker(max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0) as broker:
        moved = p50([_moved(broker, count) for _ in range(ROUNDS)])
        by_hand = p50([_by_hand(broker, count) for _ in range(ROUNDS)])
    return [
        Row(
            f"{count:,} poison messages of 100 B moved, against receive + send_async + acknowledge",
            rate(count, moved),
            ratio=by_hand / moved,
            limit=0.5,
            note=f"by hand {rate(count, by_hand)}",
        )
    ]


def _stored(broker: Broker, count: int) -> str:
    topic = broker.topic()
    broker.client.subscribe(topic, "s", pulsar_ray.ConsumerType.Shared).close()
    producer = broker.client.create_producer(topic)
    for _ in range(count // 1000):
        producer.send_many_async([MESSAGE] * 1000, None)
    producer.close()
    return topic


def _moved(broker: Broker, count: int) -> float:
    topic = _stored(broker, count)
    failing = broker.client.subscribe(
        topic, "s", pulsar_ray.ConsumerType.Shared, negative_ack_redelivery_delay_ms=0
    )
    for _ in range(2):
        _fail_all(failing, count)
    # Delivered once more, so that no failure is on its way when it leaves.
    _receive_all(failing, count)
    failing.close()
    letters = broker.client.subscribe(f"{topic}-s-DLQ", "counts")

    def move() -> None:
        policy = pulsar_ray.ConsumerDeadLetterPolicy(1)
        consumer = broker.client.subscribe(
            topic, "s", pulsar_ray.ConsumerType.Shared, dead_letter_policy=policy
        )
        _take(letters, count)
        consumer.close()

    return timed(move)


def _by_hand(broker: Broker, count: int) -> float:
    topic = _stored(broker, count)
    letters = broker.client.subscribe(f"{topic}-s-DLQ", "counts")

    def move() -> None:
        consumer = broker.client.subscribe(topic, "s", pulsar_ray.ConsumerType.Shared)
        producer = broker.client.create_producer(f"{topic}-s-DLQ", block_if_queue_full=True)
        taking = threading.Thread(target=_take, args=(letters, count))
        taking.start()
        for _ in range(count):
            message = consumer.receive()
            producer.send_async(message.data(), lambda *_, message=message: consumer.acknowledge(message))
        producer.flush()
        taking.join()
        consumer.close()
        producer.close()

    return timed(move)


def _fail_all(consumer: Any, count: int) -> None:
    # Failed together: what comes again meanwhile would come before what has not come yet, and fail twice.
    for table in _receive_all(consumer, count):
        consumer.negative_acknowledge_arrow(table)


def _receive_all(consumer: Any, count: int) -> list[Any]:
    tables: list[Any] = []
    while count > sum(table.num_rows for table in tables):
        tables.append(consumer.receive_arrow(10_000))
    return tables


def _take(consumer: Any, count: int) -> None:
    left = count
    while left:
        table = consumer.receive_arrow(10_000)
        consumer.acknowledge_arrow(table)
        left -= table.num_rows
