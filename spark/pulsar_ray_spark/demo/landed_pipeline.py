"""The frame of the pipelines over a landed topic: options, session, landing and query.

A pipeline's query reads the landing as a stream. Started again, the landing and the query go on where they
were, whatever ended them.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_ray
import pulsar_ray_spark
from pulsar_ray.client.client import Client
from pulsar_ray_spark.demo.text import TextFile, standard_library

FIRST_MS = 1_700_006_400_000
LINE_MS = 1_000
PAUSE_MS = 300_000
"""An empty line stands for a pause: who writes thinks."""
_LATE_EVERY = 97
_LINES_PER_SEND = 4096


class TextEvent(NamedTuple):
    """A line of a module's source, and when it was written."""

    module: str
    line: bytes
    time_ms: int


def text_events(files: Sequence[TextFile]) -> Iterator[TextEvent]:
    """Yield the lines that are not empty, a second apart.

    All files are written from the same moment on, so that a file's events are as late as others are long.
    """
    for file in files:
        time_ms = FIRST_MS
        for line in file.lines():
            if line.strip():
                yield TextEvent(file.module, line, time_ms)
                time_ms += LINE_MS
            else:
                time_ms += PAUSE_MS


def in_order_but_for_some(events: Sequence[TextEvent]) -> list[TextEvent]:
    """Sort events by time, but let each 97th come a tenth of them later."""
    in_order = sorted(events, key=lambda event: event.time_ms)
    behind = len(in_order) // 10
    places = [number + (behind if number % _LATE_EVERY == 0 else 0) for number in range(len(in_order))]
    return [event for _, event in sorted(zip(places, in_order, strict=True), key=lambda pair: pair[0])]


def publish_text(client: Client, topic: str, files: Sequence[TextFile]) -> list[TextEvent]:
    """Publish the lines of files by module, and return them in that order."""
    events = in_order_but_for_some(list(text_events(files)))
    producer = client.create_producer(topic)
    for first in range(0, len(events), _LINES_PER_SEND):
        part = events[first : first + _LINES_PER_SEND]
        producer.send_many(
            [event.line for event in part],
            partition_keys=[event.module for event in part],
            event_timestamps=[event.time_ms for event in part],
        )
    producer.close()
    return events


Start = Callable[[SparkSession, Path, Path], StreamingQuery]
"""Starts a query on a landed folder, with results and checkpoint below another one."""


def run(name: str, description: str, start: Start, show: Callable[[SparkSession, Path], DataFrame]) -> None:
    """Run a pipeline as a command.

    Publishes text if asked to, lands it, runs the query, and shows the result.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--topic", default=f"{name}-lines", help="the topic of the lines")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(f"{name}-output"),
        help="a folder for landing, checkpoint and result",
    )
    parser.add_argument(
        "--publish",
        type=int,
        default=20,
        metavar="FILES",
        help="first publish so many of Python's own source files (0: what others publish)",
    )
    given = parser.parse_args()
    output: Path = given.output.resolve()
    with pulsar_ray.Client() as client:
        if given.publish:
            publish_text(client, given.topic, standard_library(given.publish))
        spark = pulsar_ray_spark.start(name)
        try:
            landed = output / "landed"
            pulsar_ray_spark.land(
                given.topic, landed, name=landing_name(name, output), until="latest"
            ).await_termination()
            start(spark, landed, output).awaitTermination()
            pulsar_ray_spark.clean_landing(landed, output / "checkpoint")
            show(spark, output).show(20, truncate=False)
            click.echo(f"Landing, checkpoint and result are in {output}.")
        finally:
            pulsar_ray_spark.stop()


def landing_name(name: str, output: Path) -> str:
    """Name the landing, and the batches, of a pipeline: each folder has its own."""
    return f"{name}-{zlib.crc32(str(output).encode()):08x}"


def start_query(rows: DataFrame, output: Path, *partitions: str) -> StreamingQuery:
    """Append a stream to a table of parquet files in `output`/result.

    Each row is there once. The query ends with the data that is there now.
    """
    return (
        rows.writeStream.format("parquet")
        .partitionBy(*partitions)
        .option("path", str(output / "result"))
        .option("checkpointLocation", str(output / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def result(spark: SparkSession, output: Path) -> DataFrame:
    """The table that `start_query` has written."""
    return spark.read.parquet(str(output / "result"))
