"""A Spark report over a topic, on the Ray cluster that holds it.

The next report is over the messages since.

    python examples/spark_report.py

A subscription remembers how far the last report went. Needs the extra `[spark]`; a Java 17 comes with it.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import count

import pulsar_ray
import pulsar_ray_spark

USERS = ("Ada", "Grace", "Hedy")
ROWS = 30_000


def events(rows: int) -> pa.Table:
    """Visits of users, one after the other."""
    return pa.table(
        {
            "key": [USERS[number % len(USERS)] for number in range(rows)],
            "value": [b"visit %d" % number for number in range(rows)],
        }
    )


def report(title: str, visits: DataFrame) -> None:
    """Print how many visits each user made."""
    print(title)
    for row in visits.groupBy("key").agg(count("*").alias("visits")).orderBy("key").collect():
        print(f"  {row['key']}: {row['visits']:,}")


def main() -> None:
    with pulsar_ray.Client() as client:
        # Spark reads without a subscription; this one keeps the visits, and marks what was reported.
        reported = client.subscribe("visits", "reports")
        producer = client.create_producer("visits")
        producer.send_arrow(events(ROWS))

        spark = pulsar_ray_spark.start("visits")
        try:
            since_last = pulsar_ray_spark.AtSubscription("reports")
            with pulsar_ray_spark.releasing(
                pulsar_ray_spark.read(spark, "visits", start=since_last)
            ) as visits:
                report("first report", visits)
            reported.seek(pulsar_ray.MessageId.latest)

            producer.send_arrow(events(ROWS // 10))
            with pulsar_ray_spark.releasing(
                pulsar_ray_spark.read(spark, "visits", start=since_last)
            ) as visits:
                report("since then", visits)
        finally:
            pulsar_ray_spark.stop()


if __name__ == "__main__":
    main()
