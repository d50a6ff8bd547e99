"""Measure delayed messages: publishing, lateness, and a tracker with millions waiting."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import alternate, p50, percentile, rate
from benchmarks.measuring.results import Row
from pulsar_ray.actors.delayed_delivery_tracker import DelayedDeliveryTracker
from pulsar_ray.actors.options import create
from pulsar_ray.broker.subscription.delayed.delayed_tracker import index_directory
from pulsar_ray.broker.subscription.delayed.tracker_messages import FollowRequest
from pulsar_ray.config import Settings
from pulsar_ray.managed_ledger.delayed.delayed_index import DelayedIndex
from pulsar_ray.managed_ledger.delayed.delayed_rows import NO_KEY, ROW_BYTES, empty_rows
from pulsar_ray.model.message_id import Position
from pulsar_ray.transport.actor_names import NAMESPACE

PUBLISHED = 1_000_000
WAITING = 10_000_000
FLAT_FROM = 1_000_000
DUE_PER_S = 10_000
DUE_S = 20
HOUR_MS = 3_600_000
VALUE = b"x" * 100
LEAST_PUBLISH = 0.8
MOST_MIB = 32
MOST_LATE_MS = 250
MOST_RESTART = 1.5
START = Position(1, -1)


def run(env: Environment) -> list[Row]:
    """Publish with and without delays by turns; let many fall due; fill, kill and restart a tracker."""
    rows = []
    with env.broker() as broker:
        rows += _publish(broker, env.count(PUBLISHED, 10_000))
        rows.append(_lateness(broker, env.count(DUE_S, 3)))
        waiting = env.count(WAITING, 100_000)
        rows += memory_of_tracker(broker.directory / "waiting", waiting)
        rows.append(_restart(broker, waiting))
    return rows


# --- publishing, lateness ---------------------------------------------------------------------------


def _publish(broker: Broker, messages: int) -> list[Row]:
    rounds = 5
    part = messages // rounds
    chance = random.Random(1)
    delays = [chance.randrange(HOUR_MS) for _ in range(part)]
    producers = {
        name: broker.client.create_producer(
            broker.topic(), block_if_queue_full=True, max_pending_messages=10_000
        )
        for name in ("delayed", "not delayed")
    }

    def delayed() -> None:
        producer, now_ms = producers["delayed"], time.time_ns() // 1_000_000 + 60_000
        for delay in delays:
            producer.send_async(VALUE, None, deliver_at=now_ms + delay)
        producer.flush()

    def plain() -> None:
        producer = producers["not delayed"]
        for _ in delays:
            producer.send_async(VALUE, None)
        producer.flush()

    def with_times() -> None:
        producer = producers["not delayed"]
        for delay in delays:
            producer.send_async(VALUE, None, event_timestamp=delay)
        producer.flush()

    times = alternate({"delayed": delayed, "plain": plain, "with event times": with_times}, rounds)
    floor, ours = p50(times["plain"]), p50(times["delayed"])
    return [
        Row(
            f"publish {messages:,} messages of 100 B over the next hour, send_async, batching off",
            rate(part, ours),
            f"not delayed {rate(part, floor)}",
            floor / ours,
            LEAST_PUBLISH,
            note=f"with an event time instead {rate(part, p50(times['with event times']))}",
        )
    ]


def _lateness(broker: Broker, seconds: int) -> Row:
    topic = broker.topic()
    with pulsar_ray.Admin() as admin:
        broker.client.get_topic_partitions(topic)
        admin.topics.policies.set(topic, "delayed_delivery", strict=True)
    consumer = broker.client.subscribe(
        topic,
        "bench",
        pulsar_ray.ConsumerType.Shared,
        receiver_queue_size=10_000,
        # By default it would gather for 100 ms.
        batch_receive_policy=pulsar_ray.ConsumerBatchReceivePolicy(1000, -1, 5),
    )
    producer = broker.client.create_producer(topic, block_if_queue_full=True, max_pending_messages=10_000)
    cold_s = _start_tracker(topic, producer)
    messages = seconds * DUE_PER_S
    first_ms = time.time_ns() // 1_000_000 + 3_000 + messages // 50
    for number in range(messages):
        due_ms = first_ms + number * 1000 // DUE_PER_S
        producer.send_async(b"%d" % due_ms, None, deliver_at=due_ms)
    producer.flush()
    assert time.time_ns() // 1_000_000 < first_ms, "publishing took too long"
    late: list[int] = []
    while len(late) < messages:
        received = consumer.batch_receive()
        now_ms = time.time_ns() // 1_000_000
        late += [now_ms - int(message.data()) for message in received]
        if received:
            consumer.acknowledge(received)
    consumer.close()
    producer.close()
    return Row(
        f"lateness while {DUE_PER_S:,} fall due a second, strict, p99",
        f"{percentile(late, 99):,.0f} ms",
        f"{MOST_LATE_MS} ms",
        percentile(late, 99) / MOST_LATE_MS,
        1.0,
        at_most=True,
        note=f"p50 {percentile(late, 50):,.0f} ms, earliest {min(late):,} ms, {messages:,} messages; "
        f"the tracker took {cold_s:.1f} s to start",
    )


def _start_tracker(topic: str, producer: pulsar_ray.Producer) -> float:
    """Have a tracker started by a message of tomorrow; the start of a process is no lateness."""
    began = time.perf_counter()
    producer.send(b"", deliver_at=time.time_ns() // 1_000_000 + 24 * HOUR_MS)
    with pulsar_ray.Admin() as admin:
        while not admin.topics.stats(topic)["subscriptions"]["bench"]["msgDelayed"]:
            time.sleep(0.05)
    return time.perf_counter() - began


# --- a tracker with many waiting ---------------------------------------------------------------------


def fill(directory: str, waiting: int) -> None:
    """Index so many rows that are due within a day, and print memory on the way; in a process of its own."""
    me = psutil.Process()
    index = DelayedIndex.open(Path(directory), START)
    chance = np.random.default_rng(1)
    index.add(_some_rows(chance, 0, 1000), Position(1, 999))
    index.flush()
    gc.collect()
    found = {"idle": me.memory_info().rss}
    most = 0
    for first in range(1000, waiting, 50_000):
        count = min(50_000, waiting - first)
        index.add(_some_rows(chance, first, count), Position(1, first + count - 1))
        index.flush()
        while index.work(START):
            pass
        most = max(most, me.memory_info().rss)
        if first <= FLAT_FROM:
            found["flat from"] = most
    found["most"] = most
    found["entries"] = index.entries
    index.close()
    print(json.dumps(found))


def _some_rows(chance: Any, first: int, count: int) -> Any:
    rows = empty_rows(count)
    rows["deliver_at"] = time.time_ns() // 1_000_000 + HOUR_MS + chance.integers(0, 24 * HOUR_MS, count)
    rows["ledger_id"] = 1
    rows["first_entry_id"] = np.arange(first, first + count)
    rows["length"], rows["messages"] = 200, 1
    return rows


def memory_of_tracker(path: Path, waiting: int) -> list[Row]:
    """Fill an index in a process of its own."""
    directory = index_directory(path, 1)
    directory.parent.mkdir(parents=True)
    code = f"from benchmarks.receiving.delayed import fill; fill({str(directory)!r}, {waiting})"
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    took = time.perf_counter() - began
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["entries"] == waiting, found
    above = (found["most"] - found["idle"]) / 2**20
    at_flat = (found["flat from"] - found["idle"]) / 2**20
    return [
        Row(
            f"memory of a tracker with {waiting:,} waiting, above one with a thousand, at most",
            f"{above:,.1f} MiB",
            f"{MOST_MIB} MiB",
            above / MOST_MIB,
            1.0,
            at_most=True,
            note=f"{at_flat:,.1f} MiB at {min(FLAT_FROM, waiting):,}; indexed {rate(waiting, took)}",
        )
    ]


def _restart(broker: Broker, waiting: int) -> Row:
    node = ray.get_runtime_context().get_node_id()
    directory, through = str(broker.directory / "waiting"), Position(1, waiting - 1)
    request = FollowRequest(1, directory, 1, START, (), through, START, NO_KEY, 0, 1 << 61, 100, 100_000)
    settings = Settings(data_dir=str(broker.directory / "data"))
    tracker = create(DelayedDeliveryTracker, "bench ~> tracker", node, "bench", "tracker", settings)
    bare = _Bare.options(name="bench-bare", namespace=NAMESPACE, max_restarts=-1).remote()  # type: ignore[attr-defined]
    assert len(ray.get(tracker.follow.remote(request)).rows) == 100 * ROW_BYTES
    ours, floor = [], []
    for _ in range(3):
        floor.append(_restarted(bare, bare.probe.remote))
        ours.append(_restarted(tracker, lambda: tracker.follow.remote(request)))
    ray.kill(tracker)
    ray.kill(bare)
    return Row(
        f"restart of a tracker with {waiting:,} waiting, kill -9 until it answers what is due",
        f"{p50(ours):.2f} s",
        f"a bare actor {p50(floor):.2f} s",
        p50(ours) / p50(floor),
        MOST_RESTART,
        at_most=True,
    )


def _restarted(actor: Any, ask: Callable[[], Any]) -> float:
    process = psutil.Process(ray.get(actor.probe.remote()))
    process.kill()
    began = time.perf_counter()
    process.wait()
    while True:
        try:
            ray.get(ask())
        except ray.exceptions.RayActorError:
            time.sleep(0.01)
        else:
            return time.perf_counter() - began


@ray.remote(num_cpus=0)
class _Bare:
    def probe(self) -> int:
        """Return the process id."""
        return os.getpid()
