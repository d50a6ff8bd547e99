"""Say of dead letters where they come from, and why they failed.

    python spark/pipelines/dead_letters.py --topic orders-billing-DLQ

Groups the letters of a dead letter topic by the topic that they were sent to first, and by a property that
their consumers gave them, as `reconsume_later(message, properties={"reason": "no such user"})` does.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

import pulsar_ray_spark

COLUMNS = ["key", "value", "properties", "publish_time"]


def analysis(letters: DataFrame, reason: str = "reason") -> DataFrame:
    """Letters by topic and reason: how many, since when, and an example."""
    property_of = F.col("properties")
    return (
        letters.select(
            property_of["REAL_TOPIC"].alias("topic"),
            F.coalesce(property_of[reason], F.lit("(none given)")).alias("reason"),
            property_of["ORIGIN_MESSAGE_ID"].alias("message_id"),
            F.col("value").cast("string").alias("text"),
            "key",
            "publish_time",
        )
        .groupBy("topic", "reason")
        .agg(
            F.count("*").alias("letters"),
            F.count_distinct("key").alias("keys"),
            F.min("publish_time").alias("since"),
            F.min_by("message_id", "publish_time").alias("example_id"),
            F.min_by("text", "publish_time").alias("example"),
        )
        .orderBy(F.desc("letters"), "topic", "reason")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", required=True, help="the dead letter topic")
    parser.add_argument("--reason", default="reason", help="the property that tells why a message failed")
    given = parser.parse_args()
    spark = pulsar_ray_spark.start("dead letters")
    try:
        letters = pulsar_ray_spark.read(spark, given.topic, columns=COLUMNS)
        with pulsar_ray_spark.releasing(letters):
            analysis(letters, given.reason).show(50, truncate=60)
    finally:
        pulsar_ray_spark.stop()


if __name__ == "__main__":
    main()
