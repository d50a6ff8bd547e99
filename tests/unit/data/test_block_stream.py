from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pulsar_ray.data.planning.plan import ReadRange
from pulsar_ray.data.reading.block_stream import (
    Column,
    batch_of_stream,
    joined_stream,
    of_empty_maps,
    of_fixed,
    of_maps,
    of_no_value,
    of_numbers,
    of_same_string,
    of_strings,
)
from pulsar_ray.data.reading.rows import encode_blocks
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.format.arrow_message import BatchTemplate
from pulsar_ray.model.message_id import EARLIEST, LATEST
from tests.stored_messages import batch
from tests.stored_segments import write_segment

MAPS = pa.map_(pa.utf8(), pa.utf8())


def read_back(schema: pa.Schema, rows: int, *columns: Column) -> pa.Table:
    """By Arrow's own reader, and by one that checks each offset and character."""
    stream = joined_stream(schema, rows, columns)
    assert len(stream) % 8 == 0
    batch_of_stream(stream).validate(full=True)
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    return table


def any_strings(generator: random.Random, kind: pa.DataType) -> pa.Array:
    """Up to 40 values, cut out of a longer array at any place."""

    def value() -> Any:
        if generator.random() < 0.2:
            return None
        text = "é" * generator.randrange(5)
        return text if pa.types.is_string(kind) else text.encode()

    whole = pa.array([value() for _ in range(generator.randrange(40))], kind)
    first = generator.randrange(len(whole) + 1)
    return whole.slice(first, generator.randrange(len(whole) - first + 1))


@pytest.mark.parametrize("kind", [pa.utf8(), pa.binary()], ids=str)
def test_strings_of_any_pieces_are_those_that_arrow_joins(kind: pa.DataType) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    for _ in range(200):
        pieces = [any_strings(generator, kind) for _ in range(generator.randrange(1, 6))]
        wanted = pa.concat_arrays(pieces)
        table = read_back(pa.schema([("s", kind)]), len(wanted), of_strings(pieces))
        assert table["s"].to_pylist() == wanted.to_pylist()
        assert table["s"].null_count == wanted.null_count


def test_columns_of_every_kind_beside_each_other() -> None:
    times = pa.array([None, 5, -7, None], pa.timestamp("us", tz="UTC"))
    maps = pa.array([[("x", "y")], [], [("a", "1"), ("b", "2")], [], [("c", "3")]], MAPS).slice(1)
    schema = pa.schema(
        [
            ("number", pa.int32()),
            ("time", times.type),
            ("maps", MAPS),
            ("no_maps", MAPS),
            ("no_string", pa.utf8()),
            ("no_time", times.type),
            ("same", pa.utf8()),
            ("same_nothing", pa.utf8()),
        ]
    )
    table = read_back(
        schema,
        4,
        of_numbers(np.array([1, 2, 3, 4], np.int32)),
        of_fixed(times, np.int64),
        of_maps(maps.offsets.to_numpy(), maps.keys, maps.items),
        of_empty_maps(4),
        of_no_value(4, pa.utf8()),
        of_no_value(4, times.type),
        of_same_string(4, "Zoë".encode()),
        of_same_string(4, b""),
    )
    assert table["number"].to_pylist() == [1, 2, 3, 4]
    assert table["time"].to_pylist() == times.to_pylist()
    assert table["maps"].to_pylist() == maps.to_pylist()
    assert table["no_maps"].to_pylist() == [[]] * 4
    assert table["no_string"].to_pylist() == table["no_time"].to_pylist() == [None] * 4
    assert table["same"].to_pylist() == ["Zoë"] * 4
    assert table["same_nothing"].to_pylist() == [""] * 4


def test_metadata_is_made_for_as_many_columns_as_the_sample_has() -> None:
    sample = pa.record_batch([pa.array([1]), pa.array(["x"])], ["a", "b"])
    template = BatchTemplate(sample.serialize().to_pybytes())
    with pytest.raises(ValueError, match=r"\(1, 2\) arrays and buffers instead of \(2, 5\)"):
        template.metadata(1, [(1, 0)], [0, 8])


def test_a_block_is_sized_by_the_columns_that_are_wanted(tmp_path: Path) -> None:
    stored = [[batch([bytes(1000)] * 100, keys=["k"] * 100)] for _ in range(100)]
    asked = ReadRange("", "t", -1, (write_segment(tmp_path / "5-0.seg", stored),), EARLIEST, LATEST)

    def counts(*columns: str) -> list[int]:
        return [count for _, count in encode_blocks(stored_rows(asked), 0, 1 << 20, columns)]

    assert counts("key") == [10_000]
    assert len(counts("value")) == len(counts("properties")) == 10
    assert sum(counts("value", "key")) == 10_000


@pytest.mark.parametrize(
    ("batches", "counts"), [(12, [800, 400]), (10, [1000]), (9, [900]), (17, [800, 900]), (8, [800])]
)
def test_a_small_rest_goes_with_the_last_block(tmp_path: Path, batches: int, counts: list[int]) -> None:
    stored = [[batch([bytes(1000)] * 100)] for _ in range(batches)]
    segment = write_segment(tmp_path / "5-0.seg", stored)
    asked = ReadRange("", "t", -1, (segment,), EARLIEST, LATEST)
    size, stored_bytes = 830_000, segment.end_offset - segment.offset
    blocks = encode_blocks(stored_rows(asked), 0, size, ("value",), stored_bytes)
    assert [count for _, count in blocks] == counts
    without = [count for _, count in encode_blocks(stored_rows(asked), 0, size, ("value",))]
    assert without == [800] * (batches // 8) + [100 * (batches % 8)] * bool(batches % 8)


def test_a_long_name_that_is_stored_once_counts_for_each_row(tmp_path: Path) -> None:
    stored = [[batch([b""] * 100, producer_name="n" * 1000)] for _ in range(100)]
    asked = ReadRange("", "t", -1, (write_segment(tmp_path / "5-0.seg", stored),), EARLIEST, LATEST)
    blocks = [block for block, _ in encode_blocks(stored_rows(asked), 0, 1 << 20, ("producer_name",))]
    assert max(map(len, blocks)) <= 1 << 20


def test_stored_blocks_are_not_all_held_for_a_small_column(tmp_path: Path) -> None:
    block = batch([bytes(8192)] * 512, codec=2)
    stored = [[block] for _ in range(40)]
    asked = ReadRange("", "t", -1, (write_segment(tmp_path / "5-0.seg", stored),), EARLIEST, LATEST)
    counts = [count for _, count in encode_blocks(stored_rows(asked), 0, 1 << 30, ("ledger_id",))]
    assert counts == [512 * 15, 512 * 15, 512 * 10], "64 MiB of payloads that have some 4.2 MB each"
