"""Reads in a loop: what one has taken, of memory and of disk, the next one finds again."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from pyspark.sql import SparkSession

from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark import handover, read, release
from tests.spark.stored_topic import StoredTopics
from tests.stored_messages import batch
from tests.stored_segments import write_segment

READ_BYTES = 6 << 20
READS = 200
GROWTH_BYTES = 64 << 20
"""A driver's memory may grow by so much, however many reads there are: far less than they are together."""


def object_store_bytes() -> int:
    total = int(ray.cluster_resources()["object_store_memory"])  # type: ignore[no-untyped-call]
    return total - int(ray.available_resources().get("object_store_memory", 0))  # type: ignore[no-untyped-call]


def disk_bytes() -> int:
    """Everything that Ray and Spark have on disk, without logs."""
    node: Any = ray._private.worker._global_node
    found = 0
    for folder, _, files in os.walk(node.get_session_dir_path()):
        for name in files if "/logs" not in folder else ():
            # Spark deletes what earlier tests have left meanwhile.
            with suppress(FileNotFoundError):
                found += (Path(folder) / name).lstat().st_size
    return found


@pytest.mark.long
def test_memory_and_disk_stay_flat(spark: SparkSession, tmp_path: Path) -> None:
    handover.release_all()
    topics = StoredTopics()
    values = [os.urandom(1 << 10)] * 1024
    topics.add("t", write_segment(tmp_path / "5-0.seg", [[batch(values)]] * (READ_BYTES >> 20)))

    def read_once(*, is_left: bool) -> None:
        frame = read(spark, "t", planner=topics, block_bytes=1 << 20)
        assert frame.count() == 1024 * (READ_BYTES >> 20)
        if not is_left:
            release(frame)

    for _ in range(5):
        read_once(is_left=False)
    memory, store, disk = psutil.Process().memory_info().rss, object_store_bytes(), disk_bytes()
    for number in range(READS):
        # Every other frame is left to the garbage collector.
        read_once(is_left=number % 2 == 0)
        # Py4J, which is asked to let go at 64, does so within a second.
        assert handover.held_blocks() <= 64 + 4 * (READ_BYTES >> 20)
    assert psutil.Process().memory_info().rss - memory < GROWTH_BYTES

    jvm: Any = spark._jvm

    def is_given_back() -> bool:
        gc.collect()
        jvm.System.gc()
        handover.release_unreachable(spark)
        return object_store_bytes() <= store + READ_BYTES and handover.held_blocks() == 0

    wait_until(is_given_back, 60, "an object store as full as before")
    assert disk_bytes() <= disk + READ_BYTES
