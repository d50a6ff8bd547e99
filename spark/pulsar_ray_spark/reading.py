"""Ranges of topics as Spark DataFrames."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.broker_planner import BrokerPlanner
from pulsar_ray_spark.handover import hand_over
from pulsar_ray_spark.plan import BoundArgument, RangePlanner, as_bound
from pulsar_ray_spark.readers import READERS
from pulsar_ray_spark.rows import BLOCK_BYTES
from pulsar_ray_spark.schema import as_messages, block_struct


def read(
    spark: SparkSession,
    topic: str | Sequence[str],
    start: BoundArgument = "earliest",
    end: BoundArgument = "latest",
    *,
    planner: RangePlanner | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> DataFrame:
    """Read a range of topics or partitions as a DataFrame.

    Its columns are those of MESSAGE_SCHEMA.

    `start` is inclusive, `end` exclusive; both are fixed in this call, as is the data: what is published
    later or trimmed changes nothing. Readers beside the data decode and verify it into Ray's object store
    before this returns (it spills to disk what does not fit); rows keep the order of each partition's log.
    Without a `planner` the broker of this Ray cluster is asked, as `Client()` finds it.
    `release` gives the blocks back; else they go with the last DataFrame made from this one.

    Raises InvalidConfiguration for a wrong bound, CorruptData, WrongNode and the client's own errors.
    """
    planner = planner or BrokerPlanner()
    topics = [topic] if isinstance(topic, str) else list(topic)
    if not topics:
        raise InvalidConfiguration("no topic to read: give a name or a list of names")
    with planner.plan(topics, as_bound(start), as_bound(end)) as plan:
        sources = list(dict.fromkeys((each.topic, each.partition) for each in plan.ranges))
        blocks = READERS.read(
            plan.ranges, [sources.index((each.topic, each.partition)) for each in plan.ranges], block_bytes
        )
    return as_messages(hand_over(spark, blocks, block_struct()), sources)
