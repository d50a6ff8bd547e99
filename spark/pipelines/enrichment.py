"""Enrich lines of source code on their way from one topic to another.

    python spark/pipelines/enrichment.py --publish 20

Each line becomes JSON that says what kind of line it is and what it defines. Each is in the second topic
once, whatever is killed: Spark hands the same batch to `write` again, which knows it by name and number.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_ray_spark
from pulsar_ray_spark.demo.landed_pipeline import landing_name, run

NAME = "enrichment"
TARGET = "enriched-lines"
DEFINITION = r"^\s*(?:async\s+)?(def|class)\s+(\w+)"


def enriched(lines: DataFrame) -> DataFrame:
    """Messages for the second topic: same key and time, JSON, the kind as property."""
    text = F.col("value").cast("string")
    defined = F.regexp_extract(text, DEFINITION, 1)
    kind = (
        F.when(defined != "", defined)
        .when(text.rlike(r"^\s*(import|from)\s"), "import")
        .when(text.rlike(r"^\s*#"), "comment")
        .otherwise("other")
    )
    described = F.struct(
        F.col("key").alias("module"),
        kind.alias("kind"),
        F.nullif(F.regexp_extract(text, DEFINITION, 2), F.lit("")).alias("defines"),
        F.length(text).alias("characters"),
    )
    return lines.select(
        "key",
        F.to_json(described).alias("value"),
        F.create_map(F.lit("kind"), kind).alias("properties"),
        "event_time",
    )


def start(spark: SparkSession, landed: Path, output: Path, target: str = TARGET) -> StreamingQuery:
    """Write what is landed to the second topic, batch by batch."""
    name = landing_name(NAME, output)

    def send(rows: DataFrame, batch_id: int) -> None:
        pulsar_ray_spark.write(rows, target, name=name, batch_id=batch_id)

    return (
        enriched(pulsar_ray_spark.read_landing(spark, landed))
        .writeStream.foreachBatch(send)
        .option("checkpointLocation", str(output / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def show(spark: SparkSession, _output: Path) -> DataFrame:
    """How many lines of each kind the second topic has."""
    lines = pulsar_ray_spark.read(spark, TARGET, columns=["properties"])
    return lines.groupBy(F.col("properties")["kind"].alias("kind")).count().orderBy(F.desc("count"))


if __name__ == "__main__":
    run(NAME, __doc__, start, show)
