"""Make an RDD of the Arrow batches of blocks, several blocks to a partition.

It is made of classes that are private to RayDP, and of Spark's joining of partitions; seen to work with RayDP
1.6 and Spark 3.5, whose order `tests/spark/test_handover.py` checks.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import ray
from pyspark.sql import SparkSession
from ray import ObjectRef

Blocks = Sequence[ObjectRef[Any]]

_known: dict[tuple[int, int], list[list[int]]] = {}
# Enough for a program's queries of always the same size.
_MAX_KNOWN, _MAX_KNOWN_BLOCKS = 64, 1000


def batches_of(spark: SparkSession, blocks: Blocks, partitions: int) -> Any:
    """Make the JVM's RDD of the batches of blocks, in their order.

    Partitions have the same number of blocks, or one more than others. Blocks of several owners are never
    joined: Spark would have to fetch them in the order of their hosts.
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
