"""Measure consuming: one by one, in batches, and as Arrow.

The floor reads the same bytes.
"""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import ray

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import CpuMeter, p50, rate, timed
from benchmarks.measuring.results import Row
from pulsar_ray.format.checksum import checksum

MESSAGE = b"x" * 100
ROUNDS = 5
SLICE_BYTES = 1 << 20


def run(env: Environment) -> list[Row]:
    """Everything is published first and then consumed, so that nothing waits for the disk."""
    with env.broker() as broker:
        return [
            _one_by_one(broker, env.count(100_000, 10_000)),
            _one_by_one(broker, env.count(100_000, 10_000), batched=False),
            _in_batches(broker, env.count(200_000, 10_000)),
            _as_arrow(broker, env.count(512, 64)),
        ]


class _Stored:
    """A topic with messages, and a consumer at its begin."""

    def __init__(self, broker: Broker, messages: int, *, batched: bool = True, **options: Any) -> None:
        self.topic = broker.topic()
        self.messages = messages
        producer = broker.client.create_producer(self.topic, batching_enabled=batched)
        values = [MESSAGE] * 1000
        for _ in range(messages // 1000):
            producer.send_many_async(values, None)
        producer.flush()
        producer.close()
        self.consumer = broker.client.subscribe(
            self.topic, "bench", initial_position=pulsar_ray.InitialPosition.Earliest, **options
        )
        self.pids = broker.pids(self.topic, "bench")


def _measure(stored: _Stored, work: Callable[[Any, int], None]) -> tuple[dict[str, float], float]:
    """CPU per message and rate, the median of parts."""
    cpu: list[dict[str, float]] = []
    walls: list[float] = []
    part = stored.messages // (ROUNDS + 1)
    work(stored.consumer, part)
    for _ in range(ROUNDS):
        gc.collect()
        meter = CpuMeter(stored.pids)
        with meter.running():
            walls.append(timed(lambda: work(stored.consumer, part)) / part)
        cpu.append(meter.per_message(part))
    return {name: p50([one[name] for one in cpu]) for name in cpu[0]}, p50(walls)


def _one_by_one(broker: Broker, messages: int, *, batched: bool = True) -> Row:
    stored = _Stored(broker, messages * (ROUNDS + 1), batched=batched)

    def work(consumer: Any, count: int) -> None:
        for _ in range(count):
            consumer.acknowledge(consumer.receive())

    cpu, wall = _measure(stored, work)
    stored.consumer.close()
    stored_as = "1,000 per entry" if batched else "an entry each"
    return _cpu_row(f"receive + acknowledge one by one, 100 B, stored {stored_as}", cpu, wall, 3.0)


def _in_batches(broker: Broker, messages: int) -> Row:
    stored = _Stored(broker, messages * (ROUNDS + 1))

    ahead = 0  # a batch may reach into the next part

    def work(consumer: Any, count: int) -> None:
        nonlocal ahead
        left = count - ahead
        while left > 0:
            batch = consumer.batch_receive()
            for message in batch:
                message.data()
            if len(batch):
                consumer.acknowledge_cumulative(batch[-1])
            left -= len(batch)
        ahead = -left

    cpu, wall = _measure(stored, work)
    stored.consumer.close()
    return _cpu_row("batch_receive, .data() of each, one cumulative ack", cpu, wall, 1.0)


def _cpu_row(what: str, cpu: dict[str, float], wall: float, limit_us: float) -> Row:
    ours = cpu["client"]
    return Row(
        what, f"{ours:.2f} us", ratio=ours, limit=limit_us, at_most=True, cpu_us=cpu, note=rate(1, wall)
    )


def _as_arrow(broker: Broker, slices: int) -> Row:
    topic = broker.topic()
    batch = pa.table({"value": [os.urandom(1024)] * 1000})
    consumer = broker.client.subscribe(topic, "bench")
    producer = broker.client.create_producer(topic)
    for _ in range(slices):
        producer.send_arrow_async(batch, None)
    producer.flush()
    floor = _Reader(_segments(broker, topic))
    meter = broker.meter(topic, "bench")
    ours: list[float] = []
    read: list[float] = []
    received = 0
    while received < slices * 1000:
        began = time.perf_counter()
        with meter.running():
            table = consumer.receive_arrow(16_000, 5000)
            consumer.acknowledge_arrow(table)
        size = table.num_rows * 1024
        ours.append(size / (time.perf_counter() - began))
        began = time.perf_counter()
        read.append(floor.read(size) / (time.perf_counter() - began))
        received += table.num_rows
    floor.close()
    consumer.close()
    producer.close()
    return Row(
        "receive_arrow catch-up, 1 KiB rows, 1 MiB entries",
        f"{p50(ours) / 1e6:,.0f} MB/s",
        f"pread + checksum {p50(read) / 1e6:,.0f} MB/s",
        p50([a / b for a, b in zip(ours, read, strict=True)]),
        0.5,
        cpu_us=meter.per_message(received),
        note=f"{len(ours)} slices",
    )


def _segments(broker: Broker, topic: str) -> list[str]:
    """The paths of a topic's segment files."""
    partition = broker.partition(topic)
    lease = {"first": [0, 0], "last": [2**62, 0], "expires_ms": int(time.time() * 1000) + 600_000}
    granted: dict[str, Any] = ray.get(partition.call.remote("grant_lease", lease))
    return [segment[2] for segment in granted["segments"]]


class _Reader:
    """Reads the same segment files in slices and checksums them, from the start again at the end."""

    def __init__(self, paths: list[str]) -> None:
        self._fds = [os.open(path, os.O_RDONLY) for path in paths]
        self._place = 0
        self._offset = 0
        # As much as two tables: the former one is there until the next one is.
        self._kept = deque(memoryview(bytearray(SLICE_BYTES)) for _ in range(32))

    def read(self, size: int) -> int:
        """Read so many bytes on, into memory that keeps them for a while; how many it were."""
        done = 0
        while done < size:
            self._kept.rotate()
            count = os.preadv(self._fds[self._place], [self._kept[0]], self._offset)
            if not count:
                self._place = (self._place + 1) % len(self._fds)
                self._offset = 0
                continue
            checksum(self._kept[0][:count])
            self._offset += count
            done += count
        return done

    def close(self) -> None:
        """Close the files."""
        for fd in self._fds:
            os.close(fd)
