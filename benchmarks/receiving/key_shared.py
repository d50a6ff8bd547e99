"""Measure dividing messages by key, and the gain of several consumers."""

from __future__ import annotations

import time
from typing import Any

import ray

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import p50
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 100
KEYS = [f"key-{number}" for number in range(10_000)]
CONSUMERS = 4
ROUNDS = 7
SHARED = pulsar_ray.ConsumerType.Shared
KEY_SHARED = pulsar_ray.ConsumerType.KeyShared


def run(env: Environment) -> list[Row]:
    """Everything is stored first, an entry for each message; the ways of consuming it take turns."""
    messages = env.count(400_000, 20_000)
    with env.broker(max_unacked_messages_per_subscription=0) as broker:
        topic = _stored(broker, messages)
        rates: dict[str, list[float]] = {"keys": [], "shared": [], "alone": []}
        for number in range(ROUNDS):
            rates["shared"].append(_rate(topic, f"shared-{number}", SHARED, CONSUMERS, messages))
            rates["keys"].append(_rate(topic, f"keys-{number}", KEY_SHARED, CONSUMERS, messages))
            rates["alone"].append(_rate(topic, f"alone-{number}", SHARED, 1, messages))
    return [
        _row("Key_Shared, 10,000 keys, 4 consumers", rates, "keys", "shared", 0.7, "Shared"),
        _row("Shared, 4 consumers together", rates, "shared", "alone", 1.0, "one consumer"),
    ]


def _row(what: str, rates: dict[str, list[float]], ours: str, floor: str, limit: float, name: str) -> Row:
    ratio = p50([a / b for a, b in zip(rates[ours], rates[floor], strict=True)])
    return Row(
        f"{what}, receive + acknowledge one by one, 100 B, an entry each",
        f"{p50(rates[ours]):,.0f}/s",
        f"{name} {p50(rates[floor]):,.0f}/s",
        ratio,
        limit,
    )


def _stored(broker: Broker, messages: int) -> str:
    topic = broker.topic()
    broker.client.subscribe(topic, "keeps").close()
    producer = broker.client.create_producer(topic)
    values, sent = [MESSAGE] * 1000, 0
    while sent < messages:
        keys = [KEYS[(7919 * (sent + row)) % len(KEYS)] for row in range(1000)]
        producer.send_many_async(values, None, partition_keys=keys)
        sent += 1000
    producer.flush()
    producer.close()
    return topic


class _Consumer:
    """A consumer in a process of its own."""

    def __init__(self, topic: str, subscription: str, kind: pulsar_ray.ConsumerType, name: str) -> None:
        self._client = pulsar_ray.Client()
        self._consumer = self._client.subscribe(
            topic,
            subscription,
            kind,
            consumer_name=name,
            initial_position=pulsar_ray.InitialPosition.Earliest,
        )

    def ready(self) -> None:
        """It is subscribed."""

    def run(self) -> tuple[int, float, float]:
        """Consume until nothing has come for a second: how many, and when the first and the last."""
        consumer, count = self._consumer, 0
        first = last = time.time()
        while True:
            try:
                message = consumer.receive(1000)
            except pulsar_ray.Timeout:
                return count, first, last
            consumer.acknowledge(message)
            count += 1
            if count & 255 == 0:
                last = time.time()

    def close(self) -> None:
        """Leave."""
        self._client.close()


def _rate(
    topic: str, subscription: str, kind: pulsar_ray.ConsumerType, consumers: int, messages: int
) -> float:
    """Messages per second of all consumers together."""
    decorate: Any = ray.remote(num_cpus=0)
    actors = [
        decorate(_Consumer).remote(topic, subscription, kind, f"c{number}") for number in range(consumers)
    ]
    ray.get([actor.ready.remote() for actor in actors])
    told: list[tuple[int, float, float]] = ray.get([actor.run.remote() for actor in actors])
    ray.get([actor.close.remote() for actor in actors])
    for actor in actors:
        ray.kill(actor)
    got = sum(count for count, _, _ in told)
    if got < messages:
        raise RuntimeError(f"{got} of {messages} messages came to {subscription}")
    took_s: float = max(last for _, _, last in told) - min(first for _, first, _ in told)
    return got / took_s
