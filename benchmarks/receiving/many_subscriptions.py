"""Measure publishing to a topic with a thousand subscriptions, 20 of them with consumers."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import p50, timed
from benchmarks.measuring.results import Row

SUBSCRIPTIONS = 1_000
IN_USE = 20
MESSAGE = b"x" * 100
QUEUE = 10
QUIET_S = 4.0
LEAST_RATE = 0.95


def run(env: Environment) -> list[Row]:
    """Publishing to it and to a topic with one subscription takes turns."""
    messages, rounds = env.count(100_000, 5_000), env.count(20, 3)
    in_use = env.count(IN_USE, 3)
    known = env.count(SUBSCRIPTIONS, in_use + 5)
    with env.broker() as broker, pulsar_ray.Admin() as admin:
        many, one = _Topic(broker), _Topic(broker)
        many.subscribe(broker, in_use)
        one.subscribe(broker, 1)
        for number in range(known - in_use):
            admin.topics.create_subscription(many.name, f"unused-{number}")
        # Until the dispatchers have seen that nobody takes anything.
        time.sleep(QUIET_S)
        full = _compared(many, one, messages, rounds)
        takers = [_taker(broker, topic.name, count) for topic, count in ((many, in_use), (one, 1))]
        many.close_consumers()
        one.close_consumers()
        ray.get([taker.begin.remote() for taker in takers])
        consuming = _compared(many, one, messages // 5, max(rounds // 4, 3))
        for taker in takers:
            ray.kill(taker)
    return [
        Row(
            f"publish to {known:,} subscriptions, {in_use} with full queues, 100 B, batched",
            f"{p50(full[0]):,.0f}/s",
            f"to one with a full queue {p50(full[1]):,.0f}/s",
            p50([a / b for a, b in zip(*full, strict=True)]),
            LEAST_RATE,
        ),
        Row(
            f"publish to {known:,} subscriptions, {in_use} consumed, 100 B, batched",
            f"{p50(consuming[0]):,.0f}/s",
            f"to one that is consumed {p50(consuming[1]):,.0f}/s",
            p50([a / b for a, b in zip(*consuming, strict=True)]),
            note=f"{in_use} dispatchers and their consumers want the processors too",
        ),
    ]


def _compared(many: _Topic, one: _Topic, messages: int, rounds: int) -> tuple[list[float], list[float]]:
    rates: tuple[list[float], list[float]] = [], []
    for turn in range(rounds + 1):
        for topic, found in zip((many, one), rates, strict=True):
            rate = messages / timed(lambda topic=topic: topic.publish(messages))  # type: ignore[misc]
            if turn:
                found.append(rate)
    return rates


class _Topic:
    """A topic, its producer, and consumers that take nothing from their queues."""

    def __init__(self, broker: Broker) -> None:
        self.name = broker.topic()
        self._producer = broker.client.create_producer(self.name, block_if_queue_full=True)
        self._consumers: list[pulsar_ray.Consumer] = []

    def subscribe(self, broker: Broker, count: int) -> None:
        """Fill the queues of so many subscriptions."""
        self._consumers = [
            broker.client.subscribe(self.name, f"bench-{number}", receiver_queue_size=QUEUE)
            for number in range(count)
        ]
        self.publish(5 * QUEUE)

    def publish(self, messages: int) -> None:
        """Durable when it returns."""
        for _ in range(messages):
            self._producer.send_async(MESSAGE, None)
        self._producer.flush()

    def close_consumers(self) -> None:
        """Free their subscriptions."""
        for consumer in self._consumers:
            consumer.close()


def _taker(broker: Broker, topic: str, count: int) -> Any:
    decorate: Any = ray.remote(num_cpus=0)
    return decorate(_Taker).remote(str(broker.directory / "data"), topic, count)


class _Taker:
    """Consumes subscriptions as fast as it can, in a process of its own."""

    def __init__(self, data_dir: str, topic: str, count: int) -> None:
        self._client = pulsar_ray.Client(data_dir=data_dir)
        self._topic = topic
        self._count = count

    def begin(self) -> None:
        """Subscribe at the end of the topic, and take from then on."""
        for number in range(self._count):
            consumer = self._client.subscribe(self._topic, f"bench-{number}")
            consumer.seek(pulsar_ray.MessageId.latest)
            threading.Thread(target=self._take, args=(consumer,), daemon=True).start()

    @staticmethod
    def _take(consumer: pulsar_ray.Consumer) -> None:
        while True:
            consumer.acknowledge_arrow(consumer.receive_arrow())
