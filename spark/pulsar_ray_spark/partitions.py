"""How many partitions the blocks of a read make."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

_PARTITION_BYTES = 32 << 20
# Of an executor's memory, for what the partitions of all its cores have read: Spark gives a block back when
# the whole partition is done.
_PART_OF_MEMORY = 8


def partitions_of(spark: SparkSession, blocks: int, block_bytes: int) -> int:
    """Choose the number of partitions for so many blocks of about this size.

    A partition is a task, which costs Spark some ms whatever is in it. So it takes up to 32 MiB, or an eighth
    of the memory that an executor has for each core; less where each core is to have as many as the others.
    """
    context: Any = spark._jsc.sc()  # noqa: SLF001
    cores_each = int(context.conf().get("spark.executor.cores", "1"))
    memory_bytes = (int(context.executorMemory()) << 20) // (_PART_OF_MEMORY * cores_each)
    partition_bytes = min(_PARTITION_BYTES, memory_bytes)
    return count_of(blocks, block_bytes, partition_bytes, spark.sparkContext.defaultParallelism)


def count_of(blocks: int, block_bytes: int, partition_bytes: int, cores: int) -> int:
    """Choose a multiple of the cores, or the number of blocks if that is less."""
    blocks_each = max(partition_bytes // block_bytes, 1)
    at_least = -(-blocks // blocks_each)
    rounds = max(-(-at_least // cores), 1)
    return min(rounds * cores, blocks)
