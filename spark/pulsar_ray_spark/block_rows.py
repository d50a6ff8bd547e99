"""RDDs of blocks in Ray's object store, with several blocks to a partition."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import ray
from pyspark.sql import SparkSession
from ray import ObjectRef

Blocks = Sequence[ObjectRef[Any]]

_joined: dict[tuple[int, int], list[list[int]]] = {}
_MAX_KEPT = 256


def batches_of(spark: SparkSession, blocks: Blocks, partitions: int) -> Any:
    """Make the JVM's RDD of the Arrow batches of blocks, in their order.

    Partitions have the same number of blocks, or one more than others.
    """
    worker: Any = ray._private.worker.global_worker  # noqa: SLF001
    addresses = [worker.core_worker.get_owner_address(block) for block in blocks]
    if partitions == len(blocks):
        return _rows_of(spark, [block.binary() for block in blocks], addresses)
    # RayDP makes a partition of each block. Spark joins them without moving data, but in an order of its own.
    # So each block goes to the place from which it comes behind the one before it.
    joined = _joined_places(spark, addresses, partitions)
    ids = [b""] * len(blocks)
    for place, block in zip((place for places in joined for place in places), blocks, strict=True):
        ids[place] = block.binary()
    return _rows_of(spark, ids, addresses).coalesce(partitions)


def _joined_places(spark: SparkSession, addresses: Sequence[bytes], count: int) -> list[list[int]]:
    """The places of blocks that Spark joins to each of so many partitions.

    It decides by the hosts of the owners, of which there is one, and by a generator of its own that begins
    anew each time; so the answer is that of the first time.
    """
    key = len(addresses), count
    if key not in _joined:
        if len(_joined) >= _MAX_KEPT:
            _joined.clear()
        jvm: Any = spark._jvm  # noqa: SLF001
        parts = _rows_of(spark, [b""] * len(addresses), addresses).coalesce(count).partitions()
        _joined[key] = [
            json.loads(jvm.java.util.Arrays.toString(parts.get(number).parentsIndices()))
            for number in range(count)
        ]
    return _joined[key]


def _rows_of(spark: SparkSession, ids: Sequence[bytes], addresses: Sequence[bytes]) -> Any:
    jvm: Any = spark._jvm  # noqa: SLF001
    # Py4J would call the JVM for each item of a list.
    sent = jvm.net.razorvine.pickle.Unpickler().loads(pickle.dumps([ids, addresses], protocol=4))
    rows = jvm.org.apache.spark.rdd.RayDatasetRDD(spark._jsc, sent.get(0), sent.get(1))  # noqa: SLF001
    return rows.toJavaRDD()
