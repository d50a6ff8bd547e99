"""Writing a DataFrame to a topic, against Spark sorting it, handing it to Ray, and `send_arrow`."""

from __future__ import annotations

import itertools
from typing import Any

import psutil
import ray

from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import alternate, p50, rate
from benchmarks.measuring.results import Row
from benchmarks.on_spark.sessions import check_installed, session

ROWS = 5_000_000
ROUNDS = 3
FLOOR_PARTITIONS = 8
"""Rows that compress well are sorted into one or two partitions, which an executor cannot hand over."""


def run(env: Environment) -> list[Row]:
    """Ours with a name, ours without, and the floor take turns on one executor."""
    check_installed()
    rows = env.count(ROWS, 20_000)
    with env.broker(broker_deduplication_enabled=True) as broker, session() as spark:
        spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
        spark.conf.set("spark.sql.shuffle.partitions", FLOOR_PARTITIONS)
        return _rows(broker, spark, rows)


def _rows(broker: Broker, spark: Any, rows: int) -> list[Row]:
    from raydp.spark.dataset import (  # noqa: PLC0415
        release_spark_recoverable,
        spark_dataframe_to_ray_dataset,
    )

    from pulsar_ray_spark import write  # noqa: PLC0415

    frame = spark.range(rows).selectExpr(
        "concat('key-', id % 10007) AS key", "cast(lpad(cast(id AS string), 100, 'x') AS binary) AS value"
    )
    named, plain, direct = broker.topic(), broker.topic(), broker.topic()
    batches = itertools.count()
    producer = broker.client.create_producer(direct)

    def once() -> None:
        assert write(frame, named, name="bench", batch_id=next(batches)).stored == rows

    def at_least_once() -> None:
        assert write(frame, plain).messages == rows

    def floor() -> None:
        ordered = frame.sort("key", "value")
        dataset = spark_dataframe_to_ray_dataset(ordered)
        for ref in dataset.to_arrow_refs():
            producer.send_arrow(ray.get(ref))
        release_spark_recoverable(ordered)

    before = psutil.Process().memory_info().rss
    once()
    grown = psutil.Process().memory_info().rss - before
    times = alternate({"once": once, "at least once": at_least_once, "floor": floor}, ROUNDS)
    producer.close()
    taken = {name: p50(seconds) for name, seconds in times.items()}
    sorted_rate = f"sorted, handed to Ray, send_arrow {rate(rows, taken['floor'])}"
    return [
        Row(
            f"Spark write of {rows:,} rows of 100 B, exactly once",
            rate(rows, taken["once"]),
            sorted_rate,
            taken["floor"] / taken["once"],
            0.5,
            note=f"the first one made the driver {grown / 2**20:.0f} MiB larger",
        ),
        Row(
            "the same, at least once and not sorted",
            rate(rows, taken["at least once"]),
            sorted_rate,
            taken["floor"] / taken["at least once"],
        ),
    ]
