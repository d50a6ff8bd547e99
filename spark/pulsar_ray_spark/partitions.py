"""Divide blocks among Spark's partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pyspark.sql import SparkSession

_PARTITION_BYTES = 64 << 20
# Of an executor's memory, for what the partitions of all its cores have read: Spark gives a block back when
# the whole partition is done.
_PART_OF_MEMORY = 8
# Each partition of several blocks is an RDD of its own in the plan, which goes to every executor.
_MAX_JOINED = 256

T = TypeVar("T")


def in_partitions(spark: SparkSession, blocks: Sequence[T], block_bytes: int) -> list[Sequence[T]]:
    """Divide blocks of about this size among partitions, in order.

    A partition is a task, which costs Spark some ms whatever is in it. So it takes up to 64 MiB, or an eighth
    of the memory that an executor has for each core; less where each core is to have as many as the others. A
    read that makes more than 256 of them (16 GiB) has one for each block.
    """
    context: Any = spark._jsc.sc()  # noqa: SLF001
    cores_each = int(context.conf().get("spark.executor.cores", "1"))
    memory_bytes = (int(context.executorMemory()) << 20) // (_PART_OF_MEMORY * cores_each)
    parts = divided(
        blocks, block_bytes, min(_PARTITION_BYTES, memory_bytes), spark.sparkContext.defaultParallelism
    )
    return parts if len(parts) <= _MAX_JOINED else [[block] for block in blocks]


def divided(blocks: Sequence[T], block_bytes: int, partition_bytes: int, cores: int) -> list[Sequence[T]]:
    """Divide blocks into parts that differ by one at most, a multiple of the cores."""
    blocks_each = max(partition_bytes // max(block_bytes, 1), 1)
    at_least = -(-len(blocks) // blocks_each)
    rounds = max(-(-at_least // cores), 1)
    count = min(rounds * cores, len(blocks))
    return [blocks[len(blocks) * part // count : len(blocks) * (part + 1) // count] for part in range(count)]
