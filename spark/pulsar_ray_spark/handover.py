"""Hand blocks in Ray's object store to Spark.

They stay there for as long as Spark may read them.
"""

from __future__ import annotations

import gc
import json
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import ray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from ray import ObjectRef

# Blocks whose DataFrames are gone wait for the JVM's garbage collector. It does not see how much they hold,
# so it is asked to run when so many blocks (of some MiB) are kept.
_COLLECT_FROM = 64
Blocks = Sequence[ObjectRef[Any]]
_known: dict[tuple[int, int], list[list[int]]] = {}
# Enough for a program's queries of always the same size.
_MAX_KNOWN, _MAX_KNOWN_BLOCKS = 64, 1000


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


def batches_of(spark: SparkSession, blocks: Blocks, partitions: int) -> Any:
    """Make the JVM's RDD of the batches of blocks, in their order.

    Partitions have the same number of blocks, or one more than others. Blocks of several owners are never
    joined: Spark would have to fetch them in the order of their hosts. The RDD is made of classes that are
    private to RayDP, and of Spark's joining of partitions; seen to work with RayDP 1.6 and Spark 3.5, whose
    order `tests/spark/test_handover.py` checks.
    """
    worker: Any = ray._private.worker.global_worker  # noqa: SLF001
    owners = [worker.core_worker.get_owner_address(block) for block in blocks]
    if partitions == len(blocks) or len(set(owners)) > 1:
        return _batches(spark, [block.binary() for block in blocks], owners)
    # RayDP makes a partition of each block. Spark joins them without moving data, in an order of its own: of
    # four, say, first and last, and the two between. Then the second block has to stand last.
    groups = _joined_places(spark, owners, partitions)
    ids = [b""] * len(blocks)
    for place, block in zip((place for group in groups for place in group), blocks, strict=True):
        ids[place] = block.binary()
    return _batches(spark, ids, owners).coalesce(partitions)


def _joined_places(spark: SparkSession, owners: Sequence[bytes], partitions: int) -> list[list[int]]:
    """The places of the blocks that Spark joins to each of so many partitions.

    All have one owner, and so one host as far as Spark knows. Then it decides by the numbers, and by a
    generator that begins anew each time: the answer is always the same.
    """
    key = len(owners), partitions
    if (known := _known.get(key)) is not None:
        return known
    jvm: Any = spark._jvm  # noqa: SLF001
    parts = _batches(spark, [b""] * len(owners), owners).coalesce(partitions).partitions()
    groups: list[list[int]] = [
        json.loads(jvm.java.util.Arrays.toString(parts.get(number).parentsIndices()))
        for number in range(partitions)
    ]
    if len(owners) <= _MAX_KNOWN_BLOCKS:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = groups
    return groups


def _batches(spark: SparkSession, ids: Sequence[bytes], owners: Sequence[bytes]) -> Any:
    jvm: Any = spark._jvm  # noqa: SLF001
    # Py4J would call the JVM for each item of a list.
    sent = jvm.net.razorvine.pickle.Unpickler().loads(pickle.dumps([ids, owners], protocol=4))
    batches = jvm.org.apache.spark.rdd.RayDatasetRDD(spark._jsc, sent.get(0), sent.get(1))  # noqa: SLF001
    return batches.toJavaRDD()
