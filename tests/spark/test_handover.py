from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import ray
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from pulsar_ray_spark import handover
from pulsar_ray_spark.handover import hand_over, held_blocks, release, releasing

SCHEMA = StructType([StructField("number", LongType(), nullable=False), StructField("value", BinaryType())])


def encoded(rows: int, value: bytes) -> bytes:
    batch = pa.RecordBatch.from_pydict({"number": pa.array(range(rows), pa.int64()), "value": [value] * rows})
    return b"".join((batch.schema.serialize(), batch.serialize(), b"\xff\xff\xff\xff\0\0\0\0"))


@ray.remote(num_cpus=0)
def block(rows: int, size: int) -> bytes:
    return encoded(rows, os.urandom(size))


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    handover.release_all()  # what other modules' tests left to the garbage collector
    yield
    assert held_blocks() == 0


def wait_until(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline, what
        gc.collect()


def object_store_bytes() -> int:
    total = int(ray.cluster_resources()["object_store_memory"])  # type: ignore[no-untyped-call]
    return total - int(ray.available_resources().get("object_store_memory", 0))  # type: ignore[no-untyped-call]


def test_inlined_and_large_blocks(spark: SparkSession) -> None:
    refs = [block.remote(3, 10), block.remote(100, 10_000), ray.put(encoded(2, b"x"))]
    with releasing(hand_over(spark, refs, SCHEMA)) as frame:
        assert [row.number for row in frame.select("number").collect()] == [*range(3), *range(100), 0, 1]
        assert frame.rdd.getNumPartitions() == 3


@pytest.mark.parametrize(
    ("blocks", "partitions"), [(12, 4), (7, 2), (5, 1), (9, 8), (40, 13), (40, 2), (120, 31), (0, 0)]
)
def test_blocks_keep_their_order_in_partitions_of_several(
    spark: SparkSession, blocks: int, partitions: int
) -> None:
    refs = [ray.put(encoded(1 + number % 3, b"%d" % number)) for number in range(blocks)]
    values = [b"%d" % number for number in range(blocks) for _ in range(1 + number % 3)]
    for _ in range(2):
        with releasing(hand_over(spark, refs, SCHEMA, partitions)) as frame:
            rows = frame.select("value", F.spark_partition_id().alias("partition")).collect()
            assert frame.rdd.getNumPartitions() == partitions
        assert [bytes(row.value) for row in rows] == values
        in_each = Counter(partition for _, partition in {(bytes(row.value), row.partition) for row in rows})
        assert len(in_each) == partitions
        assert not blocks or max(in_each.values()) - min(in_each.values()) <= 1


@ray.remote(num_cpus=0)
class Owner:
    def put(self, number: int) -> list[Any]:
        return [ray.put(encoded(2, b"%d" % number))]


def test_blocks_of_several_owners_keep_their_order(spark: SparkSession) -> None:
    owner: Any = Owner.remote()  # type: ignore[attr-defined]
    refs = [
        ray.put(encoded(2, b"%d" % number)) if number % 2 else ray.get(owner.put.remote(number))[0]
        for number in range(12)
    ]
    with releasing(hand_over(spark, refs, SCHEMA, 5)) as frame:
        values = [bytes(row.value) for row in frame.select("value").collect()]
    assert values == [b"%d" % number for number in range(12) for _ in range(2)]


def test_the_driver_fetches_no_block(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = [block.remote(10, 10) for _ in range(3)]

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a block was fetched by the driver")

    monkeypatch.setattr(ray, "get", refuse)
    monkeypatch.setattr(ray._private.worker, "get", refuse)
    with releasing(hand_over(spark, refs, SCHEMA)) as frame:
        assert frame.count() == 30


def test_blocks_stay_for_frames_made_from_a_forgotten_one(spark: SparkSession) -> None:
    frame = hand_over(spark, [block.remote(1000, 1000) for _ in range(2)], SCHEMA).filter("number >= 500")
    gc.collect()
    handover.release_unreachable(spark)
    assert held_blocks() == 2
    assert frame.count() == 1000
    assert frame.join(frame.select("number"), "number").count() == 2000
    assert release(frame) == 2


def test_releasing_one_frame_releases_all_of_the_same_blocks_once(spark: SparkSession) -> None:
    frame = hand_over(spark, [block.remote(5, 5)], SCHEMA)
    other = hand_over(spark, [block.remote(5, 5)], SCHEMA)
    both = frame.union(frame.filter("number > 1")).union(other)
    assert both.count() == 13
    assert release(both) == 2
    assert release(frame) == release(other) == release(both) == 0
    assert release(spark.range(3).toDF("id")) == 0


def test_reading_again_and_again_with_release_leaks_nothing(spark: SparkSession) -> None:
    def read_once() -> None:
        refs = [block.remote(1000, 4000) for _ in range(2)]
        with releasing(hand_over(spark, refs, SCHEMA)) as frame:
            assert frame.count() == 2000

    for _ in range(3):
        read_once()
    before = object_store_bytes()
    for _ in range(6):
        read_once()
    # A leak would hold 48 MB by now.
    wait_until(lambda: object_store_bytes() < before + 20_000_000, "blocks stay in the object store")


@pytest.mark.long
def test_frames_that_are_dropped_give_up_their_blocks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_COLLECT_FROM", 4)
    start = held_blocks()
    for _ in range(12):
        hand_over(spark, [block.remote(10, 10), block.remote(10, 10)], SCHEMA).filter("number > 5").count()
        assert held_blocks() - start <= 20

    monkeypatch.setattr(handover, "_COLLECT_FROM", 1)

    def swept() -> bool:
        handover.release_unreachable(spark)
        return held_blocks() <= start

    wait_until(swept, "blocks of dropped frames are kept")
