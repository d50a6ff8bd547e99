"""Spark's count and sum over a topic, against the same rows in a Kafka, read by Spark's own source for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.measuring.environment import Environment
from benchmarks.measuring.kafka import BROKER, Kafka, fetched, spark_source
from benchmarks.measuring.measure import alternate, p50, rate
from benchmarks.measuring.results import Row
from benchmarks.on_spark.sessions import check_installed, first_of_sessions, session
from benchmarks.on_spark.spark_read import Load, count_and_sum, published, read_ours

LOADS = ((2_000_000, 100), (1_000_000, 1024))
ROUNDS = 3
COLUMNS = ("value",)


def run(env: Environment) -> list[Row]:
    """First reads of sessions, then reads that take turns in one; ours and Kafka's have the same jars."""
    check_installed()
    import pyspark  # noqa: PLC0415 - only where Spark is installed

    from pulsar_ray_spark.java import find_java  # noqa: PLC0415

    with env.directory() as directory:
        spark_jars = Path(pyspark.__file__).parent / "jars"
        source = spark_source(pyspark.__version__, spark_jars, directory / "source")
        jars = fetched(BROKER, directory / "broker")
        java = find_java().bin_directory / "java"
        with env.broker() as broker, closing(Kafka(java, jars, directory / "kafka")) as kafka:
            loads = [
                published(broker, env.count(messages, 20_000) // 1000 * 1000, size)
                for messages, size in LOADS
            ]
            conf = {"spark.jars": ",".join(map(str, source))}
            with session(conf) as spark:
                for load in loads:
                    _copy(spark, load, kafka)
            rows = [_first_reads(load, kafka, conf) for load in loads]
            with session(conf) as spark:
                rows += [_warm(spark, load, kafka) for load in loads]
            return rows


def _kafka_topic(load: Load) -> str:
    return load.topic.rpartition("/")[2]


def _copy(spark: Any, load: Load, kafka: Kafka) -> None:
    import pulsar_ray_spark  # noqa: PLC0415

    with pulsar_ray_spark.releasing(
        pulsar_ray_spark.read(spark, load.topic, columns=["key", "value"])
    ) as frame:
        rows = frame.write.format("kafka").option("kafka.bootstrap.servers", kafka.address)
        rows.option("topic", _kafka_topic(load)).save()


def _read_kafka(spark: Any, load: Load, kafka: Kafka) -> None:
    rows = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address)
    count_and_sum(rows.option("subscribe", _kafka_topic(load)).load().select(*COLUMNS), load)


def _first_reads(load: Load, kafka: Kafka, conf: Mapping[str, str]) -> Row:
    """Each read is the first of a session; the start of Spark is not counted."""
    times = first_of_sessions(
        {
            "ours": lambda spark: read_ours(spark, load, COLUMNS),
            "kafka": lambda spark: _read_kafka(spark, load, kafka),
        },
        conf,
    )
    return _row(f"first read of a session, {load.title}", load, times)


def _warm(spark: Any, load: Load, kafka: Kafka) -> Row:
    works = {
        "ours": lambda: read_ours(spark, load, COLUMNS),
        "kafka": lambda: _read_kafka(spark, load, kafka),
    }
    return _row(f"count + sum, {load.title}", load, alternate(works, ROUNDS))


def _row(what: str, load: Load, times: Mapping[str, list[float]]) -> Row:
    mine, theirs = p50(times["ours"]), p50(times["kafka"])
    return Row(
        f"{what}, columns={list(COLUMNS)}",
        rate(load.messages, mine),
        f"Spark's source of Kafka 3.9, 4 partitions {rate(load.messages, theirs)}",
        theirs / mine,
        note="ratio of rates",
    )
