"""Count definitions by hour, with lines that come late.

    python spark/pipelines/windowed_counts.py --publish 20

Each line of source code is a message with the time at which it was written. A window is closed, and counted,
once the newest line is an hour past its end; lines that are later than that are left out.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_ray_spark
from pulsar_ray_spark.demo.landed_pipeline import result, run, start_query

WINDOW = "1 hour"
LATENESS = "1 hour"


def counts(lines: DataFrame) -> DataFrame:
    """Lines, and definitions of functions and classes among them, by window."""
    text = F.ltrim(F.col("value").cast("string"))
    is_definition = text.startswith("def ") | text.startswith("class ")
    return (
        lines.withWatermark("event_time", LATENESS)
        .groupBy(F.window("event_time", WINDOW))
        .agg(F.count("*").alias("lines"), F.count_if(is_definition).alias("definitions"))
        .select(F.col("window.start").alias("hour"), "lines", "definitions")
    )


def start(spark: SparkSession, landed: Path, output: Path) -> StreamingQuery:
    """Count the landed lines; windows that are closed go to the table."""
    return start_query(counts(pulsar_ray_spark.read_landing(spark, landed)), output)


def show(spark: SparkSession, output: Path) -> DataFrame:
    """The hours in their order."""
    return result(spark, output).orderBy("hour")


if __name__ == "__main__":
    run("windowed-counts", __doc__, start, show)
