"""Measure the cost of topics that nobody uses, and of their first use."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import psutil
import ray

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import p50, timed
from benchmarks.measuring.results import Row
from pulsar_ray.transport.actor_names import NAMESPACE
from pulsar_ray.transport.this_ray import running_names

TOPICS = 500
CONSUMERS = 1000
WAKES = 10
IDLE_S = 2.0
ASLEEP_DEADLINE_S = 60.0
FIRST_USE = 1.5
_NAMES = itertools.count()


def run(env: Environment) -> list[Row]:
    """Topics are used once each; idle actors leave after seconds instead of a minute."""
    with env.broker(idle_actor_passivation_seconds=IDLE_S) as broker:
        used = _used_topics(broker, env.count(TOPICS, 10))
        rows = [_alive(f"{len(used)} topics used once, each with a subscription"), _memory(broker)]
        rows.append(_first_use(broker, used[: env.count(WAKES, 3)]))
    with env.broker(idle_actor_passivation_seconds=IDLE_S) as broker:
        return rows + _parked_consumers(broker, env.count(CONSUMERS, 10))


def _used_topics(broker: Broker, count: int) -> list[str]:
    topics = [broker.topic() for _ in range(count)]
    for topic in topics:
        consumer, producer = broker.client.subscribe(topic, "bench"), broker.client.create_producer(topic)
        producer.send(b"x")
        consumer.acknowledge(consumer.receive())
        consumer.close()
        producer.close()
    return topics


def _alive(what: str) -> Row:
    """Count the topics' processes once they had the time to leave."""
    deadline = time.monotonic() + ASLEEP_DEADLINE_S
    began = time.perf_counter()
    while (alive := _running()) and time.monotonic() < deadline:
        time.sleep(0.2)
    took = time.perf_counter() - began
    return Row(
        f"{what}: their processes alive a minute later",
        str(alive),
        "1 of all",
        float(alive),
        1.0,
        at_most=True,
        note=f"asleep after {took:.0f} s with an idle time of {IDLE_S:.0f} s",
    )


def _running() -> int:
    return sum("://" in name for name in running_names())


def _memory(broker: Broker) -> Row:
    """Compare a partition and a dispatcher with an actor that does nothing."""
    topic = broker.topic()
    consumer, producer = broker.client.subscribe(topic, "bench"), broker.client.create_producer(topic)
    producer.send(b"x")
    # Both stay awake while it is not acknowledged.
    message = consumer.receive()
    bare, pid = _bare_actor()
    floor = _private_bytes(pid)
    sizes = {name: _private_bytes(each) for name, each in broker.pids(topic, "bench").items()}
    ray.kill(bare)
    consumer.acknowledge(message)
    consumer.close()
    producer.close()
    return Row(
        "private memory of a partition and its dispatcher",
        " + ".join(f"{size / 2**20:.0f} MiB" for size in sizes.values()),
        f"two bare actors {2 * floor / 2**20:.0f} MiB",
        sum(sizes.values()) / (2 * floor),
        1.25,
        at_most=True,
    )


def _first_use(broker: Broker, topics: list[str]) -> Row:
    """Publishing to topics that sleep and starting bare actors take turns."""
    producers = [broker.client.create_producer(topic) for topic in topics]
    _alive("")
    ours: list[float] = []
    floor: list[float] = []
    kept: list[tuple[Any, int]] = []
    for producer in producers:
        floor.append(timed(lambda: kept.append(_bare_actor())))
        ours.append(timed(_sending(producer)))
    for actor, _ in kept:
        ray.kill(actor)
    return Row(
        "first publish to a topic that sleeps, its producer open",
        f"{p50(ours):.2f} s",
        f"a bare actor's start {p50(floor):.2f} s",
        p50([one / other for one, other in zip(ours, floor, strict=True)]),
        FIRST_USE,
        at_most=True,
    )


def _sending(producer: Any) -> Callable[[], Any]:
    return lambda: producer.send(b"x")


def _bare_actor() -> tuple[Any, int]:
    """An actor as the broker's: named, detached, its call a coroutine. Returned once it answers."""
    name = f"bare-{next(_NAMES)}"
    bare: Any = _Bare
    actor = bare.options(name=name, namespace=NAMESPACE, lifetime="detached", max_restarts=-1).remote()
    return actor, ray.get(actor.pid.remote())


@ray.remote(num_cpus=0)
class _Bare:
    async def pid(self) -> int:
        return psutil.Process().pid


def _parked_consumers(broker: Broker, count: int) -> list[Row]:
    process = psutil.Process()
    before = process.memory_full_info().uss
    consumers = {}
    for _ in range(count):
        topic = broker.topic()
        consumers[topic] = broker.client.subscribe(topic, "bench")
    what = f"{count} idle consumers, each of a topic of its own, in one process"
    rows = [_alive(what)]
    used = process.memory_full_info().uss - before
    publisher = pulsar_ray.Client(data_dir=broker.directory / "data")
    wakes: list[float] = []
    floor: list[float] = []
    kept: list[tuple[Any, int]] = []
    for topic, consumer in list(consumers.items())[:: max(1, count // WAKES)]:
        floor.append(timed(lambda: kept.extend((_bare_actor(), _bare_actor()))))
        wakes.append(timed(_waking(publisher, topic, consumer)))
    publisher.close()
    for actor, _ in kept:
        ray.kill(actor)
    return [
        *rows,
        Row(f"{what}: private memory of that process", f"{used / count / 1024:.0f} KiB each"),
        Row(
            "opening a producer, its first message at a consumer that slept",
            f"{p50(wakes):.2f} s",
            f"two bare actors, one after the other {p50(floor):.2f} s",
            p50([one / other for one, other in zip(wakes, floor, strict=True)]),
        ),
    ]


def _waking(publisher: pulsar_ray.Client, topic: str, consumer: pulsar_ray.Consumer) -> Callable[[], Any]:
    def wake() -> None:
        producer = publisher.create_producer(topic)
        producer.send(b"x")
        consumer.receive()
        producer.close()

    return wake


def _private_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_full_info().uss)
