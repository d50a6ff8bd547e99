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
    ("blocks", "cores", "count"),
    [(35, 2, 18), (5, 2, 4), (4, 2, 2), (3, 8, 3), (1, 1, 1), (0, 2, 0), (4, 0, 2)],
)
@pytest.mark.parametrize("largest", [16 * MIB, 22 * MIB])
def test_partitions_of_two_blocks(blocks: int, cores: int, count: int, largest: int) -> None:
    assert count_of(blocks, largest, 45 * MIB, cores) == count


def test_blocks_above_the_size_of_a_partition_are_alone() -> None:
    assert count_of(3, 200 * MIB, 45 * MIB, 2) == 3


def test_of_very_small_blocks_a_partition_takes_sixteen() -> None:
    assert count_of(1600, 100, 45 * MIB, 2) == 100


def test_partitions_are_small_where_cores_have_little_memory(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of the tests has 1 GiB for its one core."""
    assert partitions_of(spark, 80, 9 * MIB) == 16
    monkeypatch.setattr(partitions, "_PART_OF_MEMORY", 1 / 50)
    assert partitions_of(spark, 80, 9 * MIB) == 40
    monkeypatch.setattr(partitions, "_PART_OF_MEMORY", 1 / 1000)
    assert partitions_of(spark, 80, 9 * MIB) == 80
