"""How many partitions the blocks of a read make."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

# Two blocks of 16 MiB, also if both have a small rest with them.
_PARTITION_BYTES = 45 << 20
# Spark gives the blocks of a task back when all of it is done; all cores' tasks have this part of its memory.
_PART_OF_MEMORY = 1 / 8
# Each block takes some kB besides, for as long.
_MAX_BLOCKS = 16


def partitions_of(spark: SparkSession, blocks: int, largest_bytes: int) -> int:
    """Choose the number of partitions for blocks of which the largest has so many bytes.

    A partition is a task, which costs Spark some ms whatever is in it. So it takes two blocks of the usual
    16 MiB, more of smaller ones, and one where a core has less than 360 MiB of its executor's memory. Each
    core is to have as many partitions as the others (`spark.default.parallelism` is their number).
    """
    context: Any = spark._jsc.sc()  # noqa: SLF001
    cores_each = int(context.conf().get("spark.executor.cores", "1"))
    for_a_core = int((int(context.executorMemory()) << 20) * _PART_OF_MEMORY) // max(cores_each, 1)
    return count_of(
        blocks, largest_bytes, min(_PARTITION_BYTES, for_a_core), spark.sparkContext.defaultParallelism
    )


def count_of(blocks: int, largest_bytes: int, partition_bytes: int, parallelism: int) -> int:
    """Choose a multiple of the parallelism, or the number of blocks if that is less.

    Partitions of one block more than others' included, none has more than 16, or than fit into
    `partition_bytes` if all are as large as the largest; a block above that size is alone.
    """
    blocks_each = min(max(partition_bytes // max(largest_bytes, 1), 1), _MAX_BLOCKS)
    at_least = -(-blocks // blocks_each)
    parallelism = max(parallelism, 1)
    rounds = max(-(-at_least // parallelism), 1)
    return min(rounds * parallelism, blocks)
