"""Measure the publisher's cost of eight subscriptions that consume, against none."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import ray

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import Slices, p50, timed, us
from benchmarks.measuring.results import Row
from benchmarks.sending.arrow import ROW_BYTES, Publisher, batch_of_rows

SUBSCRIPTIONS = 8
MESSAGE = b"x" * 1024
MIB = 1 << 20
BLOCK = 25


def run(env: Environment) -> list[Row]:
    """Publishing to a topic with 8 consumed subscriptions and to one without take turns."""
    with env.broker() as broker:
        return [
            _throughput(broker, MIB, 64, env.count(7, 2), "1 MiB batches", 0.6),
            _throughput(broker, MIB // 16, 512, env.count(7, 2), "64 KiB batches", 0.5),
            _latency(broker, env.count(500, 50)),
        ]


class _Consumers:
    """All subscriptions' consumers, a thread each, in one process of their own."""

    def __init__(self, topic: str) -> None:
        self._client = pulsar_ray.Client()
        self._counts = [0] * SUBSCRIPTIONS
        self._consumers = [
            self._client.subscribe(topic, f"bench-{number}") for number in range(SUBSCRIPTIONS)
        ]
        for number in range(SUBSCRIPTIONS):
            threading.Thread(target=self._consume, args=(number,), daemon=True).start()

    def _consume(self, number: int) -> None:
        consumer = self._consumers[number]
        while True:
            table = consumer.receive_arrow()
            consumer.acknowledge_arrow(table)
            self._counts[number] += table.num_rows

    def wait_for(self, messages: int) -> None:
        """Until every subscription has so many."""
        while min(self._counts) < messages:
            time.sleep(0.002)


def _start_consumers(topic: str) -> Any:
    decorate: Any = ray.remote(num_cpus=0)
    actor = decorate(_Consumers).remote(topic)
    ray.get(actor.wait_for.remote(0))
    return actor


def _throughput(broker: Broker, size: int, batches: int, rounds: int, what: str, limit: float) -> Row:
    table = batch_of_rows(size)
    consumed, quiet = broker.topic(), broker.topic()
    publisher = Publisher(broker, consumed, table)
    alone = Publisher(broker, quiet, table)
    consumers = _start_consumers(consumed)
    sent = 0
    behind: list[float] = []

    def publish() -> None:
        nonlocal sent
        publisher.slice(batches)
        sent += batches * table.num_rows

    def publish_alone() -> None:
        alone.slice(batches)

    def drained() -> None:
        began = time.perf_counter()
        ray.get(consumers.wait_for.remote(sent))
        behind.append(time.perf_counter() - began)

    moved = batches * table.num_rows * ROW_BYTES
    # Consumers come to an end before the other topic's turn, so that they do not slow it down.
    works = {"ours": (moved, publish), "drain": (moved, drained), "alone": (moved, publish_alone)}
    slices = Slices(works, broker.meter(consumed, "bench-0"), rounds)
    ray.kill(consumers)
    publisher.close()
    alone.close()
    return Row(
        f"publish with 8 subscriptions that all consume, {what}",
        slices.text("ours"),
        f"without any {slices.text('alone')}",
        slices.ratio("alone"),
        limit,
        cpu_us=slices.cpu_us(batches * table.num_rows),
        note=f"consumers end {1000 * p50(behind):.0f} ms after a slice of {moved / 1e6:.0f} MB",
    )


def _latency(broker: Broker, rounds: int) -> Row:
    consumed, quiet = broker.topic(), broker.topic()
    producer = broker.client.create_producer(consumed)
    alone = broker.client.create_producer(quiet)
    consumers = _start_consumers(consumed)
    gc.collect()
    ours: list[float] = []
    without: list[float] = []
    for _ in range(rounds // BLOCK + 1):
        ours += [timed(lambda: producer.send(MESSAGE)) for _ in range(BLOCK)]
        # They come to an end before the other topic's turn, so that they do not slow it down.
        ray.get(consumers.wait_for.remote(len(ours)))
        without += [timed(lambda: alone.send(MESSAGE)) for _ in range(BLOCK)]
    ray.kill(consumers)
    producer.close()
    alone.close()
    return Row(
        "sync send p50 with 8 subscriptions that all consume",
        us(p50(ours)),
        f"without any {us(p50(without))}",
        p50(ours) / p50(without),
        2.2,
        at_most=True,
    )
