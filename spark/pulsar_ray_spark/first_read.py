"""Have executors load Java while the first range of a session is planned and read."""

from __future__ import annotations

import logging
import threading
from weakref import WeakSet

import pyarrow as pa
import ray
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pulsar_ray.data.reading.block_schema import BLOCK_SCHEMA
from pulsar_ray.data.reading.rows import ipc_stream
from pulsar_ray_spark.handover import frame_of_blocks
from pulsar_ray_spark.schema import as_messages, block_struct

_MAX_TASKS = 32

_log = logging.getLogger(__name__)
_warm: WeakSet[SparkContext] = WeakSet()
_lock = threading.Lock()


def warm_executors(spark: SparkSession) -> None:
    """Begin to have the executors count blocks without rows, once per session.

    The first block that an executor reads has it load Ray's and Arrow's Java, for some seconds. Meanwhile the
    range is planned, for which a topic that sleeps is waked, and read.
    """
    with _lock:
        if spark.sparkContext in _warm:
            return
        _warm.add(spark.sparkContext)
    threading.Thread(target=_count_nothing, args=(spark,), name="pulsar-ray first read", daemon=True).start()


def _count_nothing(spark: SparkSession) -> None:
    try:
        nothing = ipc_stream(pa.RecordBatch.from_pylist([], schema=BLOCK_SCHEMA))
        tasks = min(spark.sparkContext.defaultParallelism, _MAX_TASKS)
        blocks = [ray.put(nothing) for _ in range(tasks)]
        as_messages(frame_of_blocks(spark, blocks, block_struct()), ()).count()
    except Exception as error:  # noqa: BLE001 - of a session or a Ray that ends; reads raise their own
        _log.debug("executors were not prepared for the first read: %s", error)
