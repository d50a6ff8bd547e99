"""Columns of a topic's DataFrame, and how Spark makes them of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_ray.data.reading.block_schema import BLOCK_COLUMNS

MESSAGE_SCHEMA = StructType(
    [
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("ordering_key", StringType()),
        StructField(
            "properties", MapType(StringType(), StringType(), valueContainsNull=False), nullable=False
        ),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("ledger_id", LongType(), nullable=False),
        StructField("entry_id", LongType(), nullable=False),
        StructField("batch_index", IntegerType(), nullable=False),
        StructField("publish_time", TimestampType(), nullable=False),
        StructField("event_time", TimestampType()),
        StructField("sequence_id", LongType(), nullable=False),
        StructField("producer_name", StringType(), nullable=False),
        StructField("schema_version", BinaryType()),
        StructField("redelivery_count", IntegerType(), nullable=False),
    ]
)
"""Of `read`. value null: tombstone; partition -1: topic not partitioned; batch_index -1: in no batch."""


def block_struct(columns: Sequence[str] = BLOCK_COLUMNS) -> StructType:
    """Spark's schema of a block with these columns of BLOCK_SCHEMA."""
    source = StructField("source", IntegerType(), nullable=False)
    return StructType([source if name == "source" else MESSAGE_SCHEMA[name] for name in columns])


def as_messages(
    blocks: DataFrame, sources: Sequence[tuple[str, int]], columns: Sequence[str] = MESSAGE_SCHEMA.names
) -> DataFrame:
    """Make messages of blocks, with these columns of MESSAGE_SCHEMA.

    Spark fills in values that are the same for many rows. `sources` are the (topic, partition) pairs of the
    blocks. A range is read past all subscriptions, so the redelivery count is 0.
    """
    made = {
        "topic": lambda: _of_source([topic for topic, _ in sources], StringType(), ""),
        "partition": lambda: _of_source([partition for _, partition in sources], IntegerType(), -1),
        "redelivery_count": lambda: F.lit(0),
    }
    return blocks.select([made[name]().alias(name) if name in made else F.col(name) for name in columns])


def _of_source(values: Sequence[object], kind: DataType, never: object) -> Column:
    if len(set(values)) <= 1:
        return F.lit(values[0] if values else never).cast(kind)
    chosen = F.array(*(F.lit(value).cast(kind) for value in values))[F.col("source")]
    # Never null, but Spark cannot know that of an array's item.
    return F.coalesce(chosen, F.lit(never).cast(kind))
