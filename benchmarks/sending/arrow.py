"""Publishing Arrow batches: on tmpfs against Ray and a raw socket, on disk against append + fdatasync."""

from __future__ import annotations

import os
import threading
from typing import Any

import pyarrow as pa
import ray

from benchmarks.measuring.environment import Broker, Environment, run_inside
from benchmarks.measuring.floors import DurableFile, SocketSink, empty_actor
from benchmarks.measuring.inside import write_into_used_pages
from benchmarks.measuring.measure import Slices
from benchmarks.measuring.results import Row

BATCH_BYTES = 1 << 20
ROW_BYTES = 1024
OUTSTANDING = 3
SLICE_BATCHES = 16
DISK_CAP_BYTES_PER_S = 600e6


def run(env: Environment) -> list[Row]:
    """All floors get buffers of the same size, in slices that take turns with ours."""
    rows: list[Row] = []
    with env.broker(tmpfs=True) as broker:
        rows += _on_tmpfs(broker, env.count(40, 5))
    with env.broker() as broker:
        rows += _on_disk(broker, env.count(21, 5))
        rows += _both_sides(broker, env.count(11, 3))
    return rows


def batch_of_rows(batch_bytes: int = BATCH_BYTES) -> pa.Table:
    """Rows of 1 KiB that make one entry of about that size."""
    rows = batch_bytes // (ROW_BYTES + 32)
    data = os.urandom(ROW_BYTES * rows)
    values = [data[i * ROW_BYTES : (i + 1) * ROW_BYTES] for i in range(rows)]
    return pa.table({"value": pa.array(values, pa.binary())})


class Publisher:
    """Sends a batch again and again, at most 3 of them unconfirmed."""

    def __init__(self, broker: Broker, topic: str, table: pa.Table) -> None:
        self._producer = broker.client.create_producer(topic)
        self._table = table
        self._room = threading.Semaphore(OUTSTANDING)

    def slice(self, batches: int = SLICE_BATCHES) -> None:
        """Durable when it returns."""
        for _ in range(batches):
            self._room.acquire()
            self._producer.send_arrow_async(self._table, self._confirmed)
        for _ in range(OUTSTANDING):
            self._room.acquire()
        self._room.release(OUTSTANDING)

    def _confirmed(self, _result: Any, _ids: Any) -> None:
        self._room.release()

    def close(self) -> None:
        """Leave the topic."""
        self._producer.close()


def _on_tmpfs(broker: Broker, rounds: int) -> list[Row]:
    topic = broker.topic()
    table = batch_of_rows()
    publisher = Publisher(broker, topic, table)
    run_inside(
        broker.partition(topic), write_into_used_pages, (rounds + 2) * SLICE_BATCHES * (BATCH_BYTES + 8192)
    )
    actor = empty_actor()
    payload = table.column("value").chunk(0).buffers()[2]

    def by_ray() -> None:
        waiting: list[Any] = []
        for _ in range(SLICE_BATCHES):
            if len(waiting) >= OUTSTANDING:
                ray.get(waiting.pop(0))
            waiting.append(actor.take.remote(payload))
        ray.get(waiting)

    with SocketSink(broker.directory) as sink:
        size = payload.size * SLICE_BATCHES
        works = {
            "ours": (size, publisher.slice),
            "ray": (size, by_ray),
            "socket": (size, lambda: sink.send_all([payload] * SLICE_BATCHES, OUTSTANDING)),
        }
        slices = Slices(works, broker.meter(topic), rounds)
    publisher.close()
    return [
        Row(
            "send_arrow on tmpfs, 1 MiB batches, against a Ray call",
            slices.text("ours"),
            f"Ray call {slices.text('ray')}",
            slices.ratio("ray"),
            1.5,
            cpu_us=slices.cpu_us(SLICE_BATCHES * table.num_rows),
        ),
        Row(
            "the same against raw packets on a Unix socket",
            slices.text("ours"),
            f"socket {slices.text('socket')}",
            slices.ratio("socket"),
            0.4,
        ),
    ]


def _on_disk(broker: Broker, rounds: int) -> list[Row]:
    topic = broker.topic()
    table = batch_of_rows()
    publisher = Publisher(broker, topic, table)
    file = DurableFile(broker.directory / "floor")
    block = os.urandom(BATCH_BYTES)

    def append() -> None:
        for _ in range(SLICE_BATCHES):
            file.append(block)

    works = {
        "ours": (table.num_rows * ROW_BYTES * SLICE_BATCHES, publisher.slice),
        "disk": (BATCH_BYTES * SLICE_BATCHES, append),
    }
    slices = Slices(works, broker.meter(topic), rounds)
    publisher.close()
    file.close()
    return [
        Row(
            "send_arrow on disk, 1 KiB rows, 1 MiB batches",
            slices.text("ours"),
            f"append + fdatasync {slices.text('disk')}",
            slices.ratio("disk", DISK_CAP_BYTES_PER_S),
            0.8,
            cpu_us=slices.cpu_us(SLICE_BATCHES * table.num_rows),
            note="floor capped at 600 MB/s",
        )
    ]


def _both_sides(broker: Broker, rounds: int) -> list[Row]:
    topic = broker.topic()
    table = batch_of_rows()
    batches = 4 * SLICE_BATCHES
    publisher = Publisher(broker, topic, table)
    apart = Publisher(broker, broker.topic(), table)
    consumer = broker.client.subscribe(topic, "bench")

    def consume() -> None:
        left = batches * table.num_rows
        while left > 0:
            received = consumer.receive_arrow(100_000, 10_000)
            consumer.acknowledge_arrow(received)
            left -= received.num_rows

    def publish_and_consume() -> None:
        thread = threading.Thread(target=consume)
        thread.start()
        publisher.slice(batches)
        thread.join()

    size = table.num_rows * ROW_BYTES * batches
    works = {"ours": (size, publish_and_consume), "alone": (size, lambda: apart.slice(batches))}
    slices = Slices(works, broker.meter(topic, "bench"), rounds)
    for opened in (publisher, apart, consumer):
        opened.close()
    return [
        Row(
            "publish and consume at once, Arrow both sides",
            slices.text("ours"),
            f"publishing alone {slices.text('alone')}",
            slices.ratio("alone"),
            0.7,
            cpu_us=slices.cpu_us(batches * table.num_rows),
        )
    ]
