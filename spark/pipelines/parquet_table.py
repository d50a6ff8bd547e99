"""Keep a topic as a table of parquet files, partitioned by day and package.

    python spark/pipelines/parquet_table.py --publish 20

Each message is in the table once: the landing, the query's checkpoint and the table's own log see to that.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_ray_spark
from pulsar_ray_spark.demo.landed_pipeline import result, run, start_query


def table(lines: DataFrame) -> DataFrame:
    """Typed rows of messages, with the columns that the table is partitioned by."""
    return lines.select(
        F.to_date("event_time").alias("day"),
        F.split("key", r"\.")[0].alias("package"),
        F.col("key").alias("module"),
        F.col("event_time").alias("written"),
        F.col("value").cast("string").alias("line"),
        F.concat_ws(":", "topic", "ledger_id", "entry_id", "batch_index").alias("message_id"),
    )


def start(spark: SparkSession, landed: Path, output: Path) -> StreamingQuery:
    """Append what is landed to the table."""
    rows = table(pulsar_ray_spark.read_landing(spark, landed))
    return start_query(rows, output, "day", "package")


def show(spark: SparkSession, output: Path) -> DataFrame:
    """How many lines each partition of the table has."""
    return result(spark, output).groupBy("day", "package").count().orderBy("day", "package")


if __name__ == "__main__":
    run("parquet-table", __doc__, start, show)
