"""Private memory of the broker's processes: with a backlog that grows, and at full load against their bounds.

docs/memory.md states the bounds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.results import Row
from benchmarks.receiving.delayed import memory_of_tracker
from benchmarks.sending.arrow import BATCH_BYTES, Publisher, batch_of_rows
from pulsar_ray.testing.waiting import wait_until

BACKLOG_BYTES = 5 * 10**9
STEPS = 5
FLAT = 1.1
MIB = 1 << 20
LOOK_S = 0.02
PRODUCERS = 8
LARGE_BYTES = 900_000
LOAD_S = 20.0
PARTITION_MIB = 64 + 16 + 16
"""Received blocks (`lane_buffer_budget_bytes`), memory kept for packets, and what the allocator keeps."""
PENDING = 50_000
PENDING_BYTES = 850
READ_AHEAD_BYTES = 65_536 * 650
FIXED_BYTES = 16 * MIB
DEADLINE_S = 120.0


def run(env: Environment) -> list[Row]:
    """Each load has a broker, and so processes, of its own."""
    rows = _flat(env)
    rows.append(_full_partition(env))
    rows.append(_full_dispatcher(env))
    with env.directory() as path:
        rows += memory_of_tracker(path, env.count(1_000_000, 10_000))
    return rows


class Peak:
    """The most private memory that a process was seen to have above what it had at first."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.first = self.most = self._now()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look all the time."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(LOOK_S):
                self.most = max(self.most, self._now())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _now(self) -> int:
        return int(self._process.memory_full_info().uss)

    def row(self, what: str, bound_bytes: int, note: str = "") -> Row:
        """Compare it with what the process may take above its first."""
        above = self.most - self.first
        return Row(
            what,
            f"{above / MIB:.0f} MiB",
            f"bound {bound_bytes / MIB:.0f} MiB",
            above / bound_bytes,
            1.0,
            at_most=True,
            note=f"above {self.first / MIB:.0f} MiB before; {note}",
        )


def _full_partition(env: Environment) -> Row:
    with env.broker() as broker:
        topic = broker.topic()
        broker.client.create_producer(topic).close()
        peak = Peak(broker.pid(broker.partition(topic)))
        sent = [0] * PRODUCERS
        ends_at = time.monotonic() + LOAD_S * min(1.0, env.scale)
        threads = [
            threading.Thread(target=_send_large, args=(broker, topic, ends_at, sent, number))
            for number in range(PRODUCERS)
        ]
        with peak.watched():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    return peak.row(
        f"partition, {PRODUCERS} clients that send {LARGE_BYTES:,} B as fast as they can, over TCP",
        PARTITION_MIB * MIB,
        f"{sum(sent) * LARGE_BYTES / 1e9:.1f} GB sent",
    )


def _send_large(broker: Broker, topic: str, ends_at: float, sent: list[int], number: int) -> None:
    value = os.urandom(LARGE_BYTES)
    with (
        pulsar_ray.Client(data_dir=broker.directory / "data", transport="tcp") as client,
        client.create_producer(
            topic, batching_enabled=False, max_pending_messages=100, block_if_queue_full=True
        ) as producer,
    ):
        while time.monotonic() < ends_at:
            producer.send_async(value, None)
            sent[number] += 1
        producer.flush()


def _full_dispatcher(env: Environment) -> Row:
    limit = env.count(PENDING, 10_000)
    with env.broker(max_pending_acks_per_subscription=limit) as broker:
        topic = broker.topic()
        client = broker.client
        consumer = client.subscribe(topic, "bench", receiver_queue_size=2 * limit)
        peak = Peak(broker.pid(broker.dispatcher(topic, "bench")))
        producer = client.create_producer(topic)
        stored = limit + limit // 4
        with peak.watched(), pulsar_ray.Admin() as admin:
            for number in range(stored):
                # Those that are sent without waiting share blocks, which are delivered as one.
                producer.send(b"%d" % number)

            def unacked() -> int:
                stats = admin.topics.stats(topic)["subscriptions"]["bench"]
                return int(stats["unackedMessages"])

            wait_until(lambda: unacked() >= limit, DEADLINE_S, "a full dispatcher")
            held = unacked()
        with suppress(pulsar_ray.PulsarException):
            consumer.close()
        producer.close()
    return peak.row(
        f"dispatcher, Exclusive, {held:,} entries unacknowledged of {stored:,} stored one by one",
        limit * PENDING_BYTES + READ_AHEAD_BYTES + FIXED_BYTES,
        f"max_pending_acks_per_subscription {limit:,}",
    )


def _flat(env: Environment) -> list[Row]:
    """The consumer has a full queue from the start; memory is compared from there to the end."""
    with env.broker() as broker:
        topic = broker.topic()
        publisher = Publisher(broker, topic, batch_of_rows())
        consumer = broker.client.subscribe(topic, "bench")
        publisher.slice(128)
        pids = {
            "partition": broker.pid(broker.partition(topic)),
            "dispatcher": broker.pid(broker.dispatcher(topic, "bench")),
        }
        sizes = {name: [_private_bytes(pid)] for name, pid in pids.items()}
        total = int(BACKLOG_BYTES * min(1.0, env.scale))
        for _ in range(STEPS):
            publisher.slice(total // STEPS // BATCH_BYTES)
            for name, pid in pids.items():
                sizes[name].append(_private_bytes(pid))
        publisher.close()
        consumer.close()
    return [
        Row(
            f"private memory (USS) of the {name}, backlog 0 to {total / 1e9:.1f} GB",
            f"{seen[-1] / 2**20:.0f} MiB",
            f"at 128 MiB of backlog {seen[0] / 2**20:.0f} MiB",
            seen[-1] / seen[0],
            FLAT,
            at_most=True,
            note="MiB on the way: " + " ".join(f"{one / 2**20:.0f}" for one in seen),
        )
        for name, seen in sizes.items()
    ]


def _private_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_full_info().uss)
