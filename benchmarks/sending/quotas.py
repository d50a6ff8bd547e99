"""Measure what `message_ttl` and `backlog_quota` cost: the same messages with both on and off, by turns."""

from __future__ import annotations

import gc
from typing import Any

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import alternate, p50, rate
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 100
ROUNDS = 15
LEAST = 0.95
GIB = 1 << 30
NEAR = 4 << 20
"""A little more than one turn publishes: the backlog is measured in every other turn."""


def run(env: Environment) -> list[Row]:
    """Publish to two topics with a subscription each, and consume, each way by turns."""
    ways: list[tuple[str, int, dict[str, Any]]] = [
        ("send, one after the other", env.count(4_000, 200), {}),
        ("send_async, batching off", env.count(40_000, 2_000), {}),
        (
            "send_async, batched",
            env.count(100_000, 5_000),
            {"batching_enabled": True, "max_pending_messages": 20_000},
        ),
        ("batched, received and acknowledged", env.count(20_000, 2_000), {"batching_enabled": True}),
    ]
    with env.broker(tmpfs=True) as broker, pulsar_ray.Admin() as admin:
        return [_compare(broker, admin, what, messages, options) for what, messages, options in ways]


def _compare(
    broker: Broker, admin: pulsar_ray.Admin, what: str, messages: int, options: dict[str, Any]
) -> Row:
    works = {}
    ends: list[Any] = []
    is_received = what.endswith("acknowledged")
    for name in ("on", "off"):
        topic = broker.topic()
        consumer = broker.client.subscribe(topic, "s", pulsar_ray.ConsumerType.Shared)
        producer = broker.client.create_producer(topic, name, block_if_queue_full=True, **options)
        if name == "on":
            policies = admin.topics.policies
            policies.set(topic, "message_ttl", message_ttl=3600)
            limit = NEAR if is_received else GIB
            policies.set(
                topic, "backlog_quota", limit_size=limit, limit_time=3600, policy="producer_request_hold"
            )
        works[name] = _Work(producer, consumer, messages, is_awaited=what.startswith("send,"))
        works[name].is_received = is_received
        ends += [producer, *([consumer] if is_received else [])]
        if not is_received:
            consumer.close()
    gc.collect()
    times = alternate(works, ROUNDS, warm_up=2)
    # Neighbours in time are compared, so that a change of the machine meets both.
    ratio = p50([off / on for on, off in zip(times["on"], times["off"], strict=True)])
    for end in ends:
        end.close()
    on, off = (p50(times[name]) / messages for name in ("on", "off"))
    return Row(f"{what}, 100 B, TTL and quota on", rate(1, on), rate(1, off), ratio, LEAST)


class _Work:
    """Publish so many messages, and receive them if that is measured, too."""

    def __init__(
        self, producer: pulsar_ray.Producer, consumer: pulsar_ray.Consumer, messages: int, *, is_awaited: bool
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._messages = messages
        self._is_awaited = is_awaited
        self.is_received = False

    def __call__(self) -> None:
        for _ in range(self._messages):
            if self._is_awaited:
                self._producer.send(MESSAGE)
            else:
                self._producer.send_async(MESSAGE, None)
        self._producer.flush()
        if self.is_received:
            for _ in range(self._messages):
                self._consumer.acknowledge(self._consumer.receive(20_000))
