"""The frame of the pipelines over a landed topic: options, session, landing and query.

A pipeline's query reads the landing as a stream. Started again, the landing and the query go on where they
were, whatever ended them.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_ray
import pulsar_ray_spark
from pulsar_ray_spark.demo.text import standard_library
from pulsar_ray_spark.demo.text_events import publish_text

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
