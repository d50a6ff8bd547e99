"""Hand blocks in Ray's object store to Spark.

They stay there for as long as Spark may read them.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from ray import ObjectRef

from pulsar_ray_spark.block_batches import Blocks, batches_of

# Blocks whose DataFrames are gone wait for the JVM's garbage collector. It does not see how much they hold,
# so it is asked to run when so many blocks (of some MiB) are kept.
_COLLECT_FROM = 64


class _Held(NamedTuple):
    refs: tuple[ObjectRef[Any], ...]
    rdd: Any
    """The JVM's weak reference to the rows.

    It is gone when no DataFrame is built on them any more.
    """


_held: dict[int, _Held] = {}
_lock = threading.Lock()


def hand_over(
    spark: SparkSession, blocks: Blocks, schema: StructType, partitions: int | None = None
) -> DataFrame:
    """Make a DataFrame of blocks, with so many partitions; None: one for each block.

    Those of several owners (`ray.put` in several processes) always have one each.

    A block is a reference to `bytes`, an Arrow IPC stream. Rows are in the order of the blocks.

    Nothing is fetched here; executors read the object store when an action runs, at each one anew. Columns
    must be laid out as `schema` says (timestamps in us): Spark does not look at the streams' own schemas. The
    blocks stay until `release`, `stop`, or until nothing is built on the DataFrame any more.
    """
    frame = frame_of_blocks(spark, blocks, schema, partitions)
    release_unreachable(spark)
    (rdd,) = _block_rdds(frame)
    jvm: Any = spark._jvm  # noqa: SLF001
    held = _Held(tuple(blocks), jvm.java.lang.ref.WeakReference(rdd))
    with _lock:
        _held[rdd.id()] = held
    return frame


def frame_of_blocks(
    spark: SparkSession, blocks: Blocks, schema: StructType, partitions: int | None = None
) -> DataFrame:
    """Make a DataFrame of blocks that the caller keeps by having the references."""
    jvm: Any = spark._jvm  # noqa: SLF001
    jdf = jvm.com.intel.raydp.shims.SparkShimLoader.getSparkShims().toDataFrame(
        batches_of(spark, blocks, len(blocks) if partitions is None else partitions),
        schema.json(),
        spark._jsparkSession,  # noqa: SLF001
    )
    return DataFrame(jdf, spark)


def release(frame: DataFrame) -> int:
    """Give up the blocks under a DataFrame.

    Every other DataFrame made from the same read loses them too.

    An action on one of those fails afterwards. Returns how many blocks were given up; 0 if they were already.
    """
    ids = [rdd.id() for rdd in _block_rdds(frame)]
    with _lock:
        freed = [_held.pop(rdd_id, None) for rdd_id in ids]
    return sum(len(held.refs) for held in freed if held is not None)


@contextmanager
def releasing(frame: DataFrame) -> Iterator[DataFrame]:
    """`with releasing(read(...)) as frame:` releases the blocks at the end of the block."""
    try:
        yield frame
    finally:
        release(frame)


def release_unreachable(spark: SparkSession) -> int:
    """Give up blocks that no DataFrame is built on any more.

    Returns the number of reads that they belonged to.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    if held_blocks() >= _COLLECT_FROM:
        # pyspark's objects are in cycles, and keep the JVM's; py4j gives those up a moment later, so that
        # this may take effect at the next call only.
        gc.collect()
        jvm.System.gc()
    with _lock:
        held = dict(_held)
    gone = [key for key, each in held.items() if each.rdd.get() is None]
    with _lock:
        return sum(_held.pop(key, None) is not None for key in gone)


def release_all() -> None:
    """Give up every block handed over in this process."""
    with _lock:
        _held.clear()


def held_blocks() -> int:
    """How many blocks are kept for Spark."""
    with _lock:
        return sum(len(held.refs) for held in _held.values())


def _block_rdds(frame: DataFrame) -> list[Any]:
    """The JVM's row sources at the bottom of a DataFrame's plan."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    plans = [leaves.apply(index) for index in range(leaves.size())]
    return [plan.rdd() for plan in plans if plan.getClass().getSimpleName() == "LogicalRDD"]
