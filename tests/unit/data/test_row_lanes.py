from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pulsar_ray.client.producer.routing import java_string_hash, murmur3_32_hash
from pulsar_ray.data.writing.publishing import ROWS_PER_TURN, row_lanes
from pulsar_ray.model.enums import HashingScheme


def table(keys: list[str | None]) -> pa.Table:
    values = [b"%d" % number for number in range(len(keys))]
    return pa.table({"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.string())})


@pytest.mark.parametrize(
    ("scheme", "key_hash"),
    [(HashingScheme.JavaStringHash, java_string_hash), (HashingScheme.Murmur3_32Hash, murmur3_32_hash)],
)
def test_keys_go_where_every_producer_sends_them_in_their_order(
    scheme: HashingScheme, key_hash: object
) -> None:
    assert callable(key_hash)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    keys = [rng.choice(["a", "b", "日本", "key-1", "key-2", "key-3"]) for _ in range(200)]
    lanes = row_lanes(table([*keys]), 5, 3, scheme)
    for index, lane in lanes.items():
        numbers = [int(value) for value in lane.column("value").to_pylist()]
        assert numbers == [number for number, key in enumerate(keys) if key_hash(key) % 3 == index]
    assert sum(lane.num_rows for lane in lanes.values()) == 200


@pytest.mark.parametrize("with_column", [True, False])
def test_rows_without_a_key_take_turns_from_a_partition_of_their_tasks(with_column: bool) -> None:
    rows = table([None, ""] * ROWS_PER_TURN)
    rows = rows if with_column else rows.drop_columns(["key"])
    assert {index: lane.num_rows for index, lane in row_lanes(rows, 4, 3).items()} == {
        1: ROWS_PER_TURN,
        2: ROWS_PER_TURN,
    }
    assert row_lanes(rows, 4, 3) == row_lanes(rows, 4, 3)


def test_a_topic_of_one_partition_and_a_part_without_rows() -> None:
    rows = table(["a", None])
    assert row_lanes(rows, 4, 1) == {0: rows}
    assert row_lanes(rows.slice(0, 0), 4, 3) == {}
