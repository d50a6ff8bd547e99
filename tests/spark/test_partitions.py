from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from pulsar_ray_spark import partitions
from pulsar_ray_spark.partitions import divided, in_partitions

MIB = 1 << 20


def test_blocks_keep_their_order_and_cores_have_the_same_number_of_partitions() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(300):
        blocks = list(range(generator.randrange(200)))
        cores = generator.randrange(1, 20)
        limit = generator.randrange(1, 12)
        parts = divided(blocks, 16 * MIB, limit * 16 * MIB, cores)
        assert [block for part in parts for block in part] == blocks
        assert all(1 <= len(part) <= limit for part in parts)
        assert len(parts) == len(blocks) or not len(parts) % cores
        assert len({len(part) for part in parts}) <= 2, "of about the same number"
        assert len(parts) >= min(cores, len(blocks)), "each core has work"


@pytest.mark.parametrize(
    ("blocks", "cores", "sizes"),
    [
        (35, 2, [3, 4, 3, 4, 3, 4, 3, 4, 3, 4]),
        (4, 2, [2, 2]),
        (3, 8, [1, 1, 1]),
        (1, 1, [1]),
        (0, 2, []),
    ],
)
def test_partitions_of_64_mib(blocks: int, cores: int, sizes: list[int]) -> None:
    assert [len(part) for part in divided(range(blocks), 16 * MIB, 64 * MIB, cores)] == sizes


def test_blocks_above_the_size_of_a_partition_are_alone() -> None:
    assert divided("abc", 200 * MIB, 64 * MIB, 2) == ["a", "b", "c"]


def test_partitions_are_small_where_cores_have_little_memory(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of the tests has 1 GiB for its one core."""
    assert max(map(len, in_partitions(spark, range(80), 16 * MIB))) == 4
    monkeypatch.setattr(partitions, "_PART_OF_MEMORY", 32)
    assert max(map(len, in_partitions(spark, range(80), 16 * MIB))) == 2
    monkeypatch.setattr(partitions, "_PART_OF_MEMORY", 1024)
    assert max(map(len, in_partitions(spark, range(80), 16 * MIB))) == 1


def test_very_many_partitions_have_a_block_each(spark: SparkSession) -> None:
    few, many = range(250 * 4), range(5000)
    assert len(in_partitions(spark, few, 16 * MIB)) < len(few)
    assert len(in_partitions(spark, many, 64 * MIB)) == len(many)
    assert len(in_partitions(spark, many, 16 * MIB)) == len(many)
