"""The same work with what else is there: ray.util.queue, and Redis Streams if a redis-server is installed."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from typing import Any

from ray.util.queue import Queue

from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import alternate, p50, rate, timed, us
from benchmarks.measuring.redis_streams import RedisStream
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 1024
BATCH = 100
SUBSCRIPTION = "bench"


def run(env: Environment) -> list[Row]:
    """One message at a time, then as many as go in batches; ours is durable, ray.util.queue is memory."""
    rows: list[Row] = []
    with env.broker() as broker:
        ours = _Ours(broker)
        queue = _RayQueue()
        rows += _compare(env, ours, queue, "ray.util.queue (memory)")
        queue.close()
        if shutil.which("redis-server") is None:
            rows.append(Row("Redis Streams", "", note="not run: no redis-server on PATH"))
        else:
            with RedisStream(broker.directory) as redis:
                rows += _compare(env, ours, redis, "Redis Streams, appendfsync always")
        ours.close()
    return rows


class _Ours:
    def __init__(self, broker: Broker) -> None:
        topic = broker.topic()
        self._producer = broker.client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
        self._consumer = broker.client.subscribe(topic, SUBSCRIPTION)

    def put(self) -> None:
        self._producer.send(MESSAGE)

    def take(self) -> None:
        self._consumer.acknowledge(self._consumer.receive())

    def put_many(self, count: int) -> None:
        for _ in range(count):
            self._producer.send_async(MESSAGE, None)
        self._producer.flush()

    def take_many(self, count: int) -> None:
        for _ in range(count):
            self.take()

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


class _RayQueue:
    def __init__(self) -> None:
        make: Any = Queue
        self._queue = make(actor_options={"num_cpus": 0})

    def put(self) -> None:
        self._queue.put(MESSAGE)

    def take(self) -> None:
        self._queue.get()

    def put_many(self, count: int) -> None:
        for _ in range(0, count, BATCH):
            self._queue.put_nowait_batch([MESSAGE] * BATCH)

    def take_many(self, count: int) -> None:
        for _ in range(0, count, BATCH):
            self._queue.get_nowait_batch(BATCH)

    def close(self) -> None:
        self._queue.shutdown()


def _compare(env: Environment, ours: Any, theirs: Any, name: str) -> list[Row]:
    gc.collect()
    singles = alternate(
        {"ours": ours.put, "our take": ours.take, "theirs": theirs.put, "their take": theirs.take},
        env.count(500, 50),
        warm_up=10,
    )
    count = env.count(20_000, BATCH) // BATCH * BATCH
    rows = [
        _latency_row(f"put one, {name}", singles["ours"], singles["theirs"]),
        _latency_row(f"take one that is there, {name}", singles["our take"], singles["their take"]),
    ]
    for what, mine, other in (
        ("put many", ours.put_many, theirs.put_many),
        ("take many", ours.take_many, theirs.take_many),
    ):
        rows.append(_rate_row(f"{what}, {name}", count, mine, other))
    return rows


def _latency_row(what: str, ours: list[float], theirs: list[float]) -> Row:
    return Row(what, us(p50(ours)), us(p50(theirs)), p50(ours) / p50(theirs))


def _rate_row(what: str, count: int, ours: Callable[[int], None], theirs: Callable[[int], None]) -> Row:
    mine, other = timed(lambda: ours(count)), timed(lambda: theirs(count))
    return Row(what, rate(count, mine), rate(count, other), other / mine, note="ratio of rates")
