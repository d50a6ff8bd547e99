"""Read a topic with three versions of a class as one DataFrame.

Afterwards it is read as a table of its keys.

    python examples/spark_typed.py

No schema is given to Spark: the topic has it. Needs the extra `[spark]`; a Java 17 comes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

import pulsar_ray
import pulsar_ray_spark

TOPIC = "typed-parcels"


@dataclass
class Parcel:
    state: str
    grams: int = 0


@dataclass
class PlacedParcel:
    """Parcel, some weeks later: it is somewhere."""

    state: str
    grams: int = 0
    place: str = "unknown"


@dataclass
class TrackedParcel:
    """And later still: how often it was looked for; nobody weighs parcels any more."""

    state: str
    place: str = "unknown"
    looks: int | None = None


SENT: list[tuple[str, Any]] = [
    ("p1", Parcel("packed", 500)),
    ("p2", Parcel("packed", 20)),
    ("p1", PlacedParcel("on its way", 500, "Lyon")),
    ("p3", PlacedParcel("packed", 70)),
    ("p2", TrackedParcel("delivered", "Rome", 4)),
]


def show(title: str, parcels: DataFrame) -> None:
    """Print the columns of values, in the order of the log."""
    print(title)
    columns = parcels.orderBy("ledger_id", "entry_id").select("key", "value.*").collect()
    for row in columns:
        print(f"  {row['key']}: {row['state']}, {row['place']}, looks: {row['looks']}")


def main() -> None:
    with pulsar_ray.Client() as client:
        # Spark reads without a subscription; this one keeps the messages.
        client.subscribe(TOPIC, "kept")
        for key, parcel in SENT:
            client.create_producer(TOPIC, schema=type(parcel)).send(parcel, partition_key=key)

        spark = pulsar_ray_spark.start("parcels")
        try:
            with pulsar_ray_spark.releasing(pulsar_ray_spark.read(spark, TOPIC, typed=True)) as parcels:
                show("everything", parcels)
            with pulsar_ray_spark.releasing(
                pulsar_ray_spark.read(spark, TOPIC, typed=True, read_compacted=True)
            ) as parcels:
                show("each parcel as it is now", parcels)
        finally:
            pulsar_ray_spark.stop()


if __name__ == "__main__":
    main()
