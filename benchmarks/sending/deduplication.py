"""Measure what deduplication costs a producer: the same messages with it on and off, by turns."""

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


def run(env: Environment) -> list[Row]:
    """Publish to two topics, one with deduplication, each way of sending by turns."""
    ways: list[tuple[str, int, dict[str, Any]]] = [
        ("send, one after the other", env.count(4_000, 200), {}),
        ("send_async, batching off", env.count(40_000, 2_000), {}),
        (
            "send_async, batched",
            env.count(100_000, 5_000),
            {"batching_enabled": True, "max_pending_messages": 20_000},
        ),
        ("send_many, 1,000 each", env.count(500_000, 10_000), {"batching_enabled": True}),
    ]
    with env.broker(tmpfs=True) as broker, pulsar_ray.Admin() as admin:
        return [_compare(broker, admin, what, messages, options) for what, messages, options in ways]


def _compare(
    broker: Broker, admin: pulsar_ray.Admin, what: str, messages: int, options: dict[str, Any]
) -> Row:
    producers = {}
    for name in ("on", "off"):
        topic = broker.topic()
        producers[name] = broker.client.create_producer(topic, name, block_if_queue_full=True, **options)
        admin.topics.policies.set(topic, "deduplication", deduplication=name == "on")

    def publish(producer: pulsar_ray.Producer) -> None:
        if what.startswith("send,"):
            for _ in range(messages):
                producer.send(MESSAGE)
        elif what.startswith("send_many"):
            for _ in range(messages // 1000):
                producer.send_many_async([MESSAGE] * 1000, None)
        else:
            for _ in range(messages):
                producer.send_async(MESSAGE, None)
        producer.flush()

    gc.collect()
    works = {name: lambda producer=producer: publish(producer) for name, producer in producers.items()}
    times = alternate(works, ROUNDS, warm_up=2)
    # Neighbours in time are compared, so that a change of the machine meets both.
    ratio = p50([off / on for on, off in zip(times["on"], times["off"], strict=True)])
    for producer in producers.values():
        producer.close()
    on, off = (p50(times[name]) / messages for name in ("on", "off"))
    return Row(f"{what}, 100 B, deduplication on", rate(1, on), rate(1, off), ratio, LEAST)
