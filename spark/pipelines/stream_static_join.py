"""Join a stream of lines with a table that stands still.

    python spark/pipelines/stream_static_join.py --publish 20

The table says of each module whether it is one of a package, and how large its file is; the result is lines
with that beside them.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_ray_spark
from pulsar_ray_spark.demo.landed_pipeline import result, run, start_query
from pulsar_ray_spark.demo.text import TextFile, standard_library


def modules(spark: SparkSession, files: list[TextFile]) -> DataFrame:
    """The table: a row per module."""
    rows = [(file.module, file.module.partition(".")[0], file.path.stat().st_size) for file in files]
    return spark.createDataFrame(rows, "module string, package string, file_bytes long")


def joined(lines: DataFrame, table: DataFrame) -> DataFrame:
    """Lines with their module's row; those of modules that the table lacks have nulls."""
    named = lines.select(F.col("key").alias("module"), F.length("value").alias("line_bytes"))
    return named.join(F.broadcast(table), "module", "left")


def start(spark: SparkSession, landed: Path, output: Path) -> StreamingQuery:
    """Join what is landed with the table of this Python's modules."""
    lines = pulsar_ray_spark.read_landing(spark, landed)
    return start_query(joined(lines, modules(spark, standard_library())), output)


def show(spark: SparkSession, output: Path) -> DataFrame:
    """Sums by package."""
    by_package = result(spark, output).groupBy("package")
    return by_package.agg(F.count("*").alias("lines"), F.sum("line_bytes").alias("bytes")).orderBy("package")


if __name__ == "__main__":
    run("stream-static-join", __doc__, start, show)
