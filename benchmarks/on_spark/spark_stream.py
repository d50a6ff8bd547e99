"""Streams of micro-batches: delay, catching up against a batch read, and the driver's memory."""

from __future__ import annotations

import threading
import time
from typing import Any

import psutil

import pulsar_ray.data
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import p50, rate, timed
from benchmarks.measuring.results import Row
from benchmarks.on_spark.sessions import check_installed, session

TRIGGER_S = 1.0
MESSAGES = 5_000_000
MESSAGE = b"x" * 100
DELAYS = 40
ROUNDS = 3


def run(env: Environment) -> list[Row]:
    """One Spark session; the stream and the read of the same messages take turns."""
    check_installed()
    with env.broker() as broker, session() as spark:
        return [
            _delay(spark, broker, env.count(DELAYS, 10)),
            *_catch_up(spark, broker, env.count(MESSAGES, 20_000) // 1000 * 1000),
        ]


def _delay(spark: Any, broker: Broker, count: int) -> Row:
    """From a publish to the return of the function that has counted its batch."""
    import pulsar_ray_spark  # noqa: PLC0415 - only where Spark is installed

    topic, delays = broker.topic(), []
    counted = threading.Event()
    producer = broker.client.create_producer(topic)

    def function(frame: Any, _batch_id: int) -> None:
        frame.count()
        counted.set()

    stream = pulsar_ray_spark.read_stream(spark, topic, name="bench-delay", start="earliest")
    with stream.foreach_batch(function).trigger(processing_time=TRIGGER_S).start():
        for turn in range(count + 2):
            # At all moments of the interval, which a fixed pause would not meet.
            time.sleep(TRIGGER_S * (turn * 0.37 % 1))
            counted.clear()
            began = time.perf_counter()
            producer.send(MESSAGE)
            counted.wait()
            delays.append(time.perf_counter() - began)
    producer.close()
    pulsar_ray_spark.drop_query("bench-delay")
    middle = p50(delays[2:])
    return Row(
        f"publish to the function's return, trigger of {TRIGGER_S:g} s, p50",
        f"{middle:.2f} s",
        f"the trigger {TRIGGER_S:g} s",
        middle / TRIGGER_S,
        1.5,
        at_most=True,
    )


def _catch_up(spark: Any, broker: Broker, messages: int) -> list[Row]:
    """A query that is behind, against a read of what it has missed; then the memory of all that."""
    import pulsar_ray_spark  # noqa: PLC0415

    topic, name = broker.topic(), "bench-behind"
    counts: list[int] = []

    def stream(query: str) -> None:
        before = len(counts)
        running = (
            pulsar_ray_spark.read_stream(spark, topic, name=query, start="earliest")
            .foreach_batch(lambda frame, _: counts.append(frame.count()))
            .trigger(available_now=True)
            .start()
        )
        running.await_termination()
        assert sum(counts[before:]) == messages

    def read(start: Any) -> None:
        frame = pulsar_ray_spark.read(spark, topic, start)
        with pulsar_ray_spark.releasing(frame):
            assert frame.count() == messages

    driver = psutil.Process()
    times: dict[str, list[float]] = {"behind": [], "read": [], "new": []}
    grown = 0
    for turn in range(ROUNDS + 1):
        start = pulsar_ray.data.AtTime(_publish(broker, topic, messages))
        before = driver.memory_info().rss
        if turn == 0:
            # The same messages for a query that nobody knows, and whose actors are started.
            times["new"].append(timed(lambda: stream(name)))
            read(start)
            continue
        times["behind"].append(timed(lambda: stream(name)))
        times["read"].append(timed(lambda at=start: read(at)))  # type: ignore[misc]
        grown += driver.memory_info().rss - before
    pulsar_ray_spark.drop_query(name)
    ours, theirs, new = (p50(times[work]) for work in ("behind", "read", "new"))
    return [
        Row(
            f"a stopped query, {messages:,} messages of 100 B behind, foreach_batch with a count",
            rate(messages, ours),
            f"the batch read {rate(messages, theirs)}",
            theirs / ours,
            0.7,
            note=f"from start() to its end; when it was new, the first action too, {new:.1f} s",
        ),
        Row(
            f"memory of the driver's Python, over {ROUNDS} more such streams",
            f"+{grown / 2**20:.1f} MiB",
            f"{messages * len(MESSAGE) / 2**20:.0f} MiB each",
        ),
    ]


def _publish(broker: Broker, topic: str, messages: int) -> int:
    """Publish, and return a time, in ms, that lies before all of it and behind what was there."""
    time.sleep(0.01)
    began_ms = time.time_ns() // 1_000_000
    producer = broker.client.create_producer(topic, batching_enabled=True)
    values = [MESSAGE] * 1000
    for _ in range(messages // 1000):
        producer.send_many_async(values, None)
    producer.flush()
    producer.close()
    return began_ms
