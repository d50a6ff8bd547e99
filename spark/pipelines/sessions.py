"""Find sessions: lines of one module that follow each other without a pause.

    python spark/pipelines/sessions.py --publish 20

A session ends with two minutes without a line, and is told once no late line can belong to it any more.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_ray_spark
from pulsar_ray_spark.demo.landed_pipeline import result, run, start_query

PAUSE = "2 minutes"
LATENESS = "12 hours"


def sessions(lines: DataFrame) -> DataFrame:
    """Module, first and last moment, and lines of each session."""
    return (
        lines.withWatermark("event_time", LATENESS)
        .groupBy("key", F.session_window("event_time", PAUSE))
        .agg(F.count("*").alias("lines"), F.max("event_time").alias("ended"))
        .select(F.col("key").alias("module"), F.col("session_window.start").alias("began"), "ended", "lines")
    )


def start(spark: SparkSession, landed: Path, output: Path) -> StreamingQuery:
    """Find the sessions of what is landed."""
    return start_query(sessions(pulsar_ray_spark.read_landing(spark, landed)), output)


def show(spark: SparkSession, output: Path) -> DataFrame:
    """The longest sessions."""
    return result(spark, output).orderBy(F.desc("lines"), "module", "began")


if __name__ == "__main__":
    run("sessions", __doc__, start, show)
