from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from pulsar_ray_spark import partitions
from pulsar_ray_spark.partitions import count_of, partitions_of

MIB = 1 << 20


def test_cores_have_the_same_number_of_partitions_and_none_is_too_large() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(1000):
        blocks = generator.randrange(200)
        cores = generator.randrange(1, 20)
        limit = generator.randrange(1, 12)
        count = count_of(blocks, 16 * MIB, limit * 16 * MIB, cores)
        assert count == blocks or not count % cores
        assert count >= min(cores, blocks), "each core has work"
        assert count * limit >= blocks


@pytest.mark.parametrize(
    ("blocks", "cores", "count"), [(35, 2, 18), (5, 2, 4), (4, 2, 2), (3, 8, 3), (1, 1, 1), (0, 2, 0)]
)
def test_partitions_of_32_mib(blocks: int, cores: int, count: int) -> None:
    assert count_of(blocks, 16 * MIB, 32 * MIB, cores) == count


def test_blocks_above_the_size_of_a_partition_are_alone() -> None:
    assert count_of(3, 200 * MIB, 32 * MIB, 2) == 3


def test_partitions_are_small_where_cores_have_little_memory(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of the tests has 1 GiB for its one core."""
    assert partitions_of(spark, 80, 8 * MIB) == 20
    monkeypatch.setattr(partitions, "_PART_OF_MEMORY", 64)
    assert partitions_of(spark, 80, 8 * MIB) == 40
    monkeypatch.setattr(partitions, "_PART_OF_MEMORY", 1024)
    assert partitions_of(spark, 80, 8 * MIB) == 80
