from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA, encode_table
from pulsar_ray.format.table import normalize_table, split_rows, split_table

TEXT_MAP = pa.map_(pa.utf8(), pa.utf8())
VALUES = [b"abcd", None, b"efgh"]
TEXTS = ["abcd", None, "efgh"]
VIEWS: list[pa.Array] = []
if hasattr(pa, "binary_view"):  # from pyarrow 16 on
    VIEWS += [pa.array(VALUES, pa.binary_view()), pa.array(TEXTS, pa.string_view())]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(VALUES, pa.binary()),
        pa.array(VALUES, pa.large_binary()),
        pa.array(VALUES, pa.binary(4)),
        pa.array(TEXTS, pa.utf8()),
        pa.array(TEXTS, pa.large_utf8()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array(VALUES).dictionary_encode(),
        *VIEWS,
    ],
    ids=lambda column: str(column.type),
)
def test_accepted_types_of_bytes_and_text(values: pa.Array) -> None:
    table = normalize_table(pa.table({"value": values, "key": values}))
    assert table.schema.types == [pa.binary(), pa.utf8()]
    assert table.column("value").to_pylist() == VALUES
    assert table.column("key").to_pylist() == TEXTS
    for piece in split_table(table):
        encode_table(piece)


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1500, None], pa.int64()),
        pa.array([1500, None], pa.uint16()),
        pa.array([1500, None], pa.timestamp("ms")),
        pa.array([1_500_000, None], pa.timestamp("us", "UTC")),
        pa.array([1_500_999_999, None], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, datetime.timezone.utc), None]),
    ],
    ids=lambda column: str(column.type),
)
def test_accepted_types_of_event_time(times: pa.Array) -> None:
    table = normalize_table(pa.table({"value": [b"a", b"b"], "event_timestamp": times}))
    assert table.column("event_time").type == pa.int64()
    assert table.column("event_time").to_pylist() == [1500, None]


@pytest.mark.parametrize(
    "kind",
    [TEXT_MAP, pa.map_(pa.large_utf8(), pa.large_utf8()), pa.map_(pa.binary(), pa.utf8()), pa.null()],
    ids=str,
)
def test_accepted_types_of_properties(kind: pa.DataType) -> None:
    rows = [None, None] if pa.types.is_null(kind) else [[("a", "b")], None]
    table = normalize_table(pa.table({"value": [b"1", b"2"], "properties": pa.array(rows, kind)}))
    assert table.column("properties").type == TEXT_MAP
    assert table.column("properties").to_pylist() == rows


def test_received_table_can_be_sent_on() -> None:
    received = pa.table(
        {
            "redelivery_count": [0],
            "key": ["k"],
            "value": [b"v"],
            "ordering_key": pa.nulls(1, pa.utf8()),
            "properties": pa.array([[("a", "b")]], TEXT_MAP),
            "topic": ["t"],
            "partition": [0],
            "ledger_id": [1],
            "entry_id": [2],
            "batch_index": [0],
            "publish_time": [5],
            "event_time": pa.array([None], pa.int64()),
            "sequence_id": [9],
            "producer_name": ["p"],
            "schema_version": pa.nulls(1),
        }
    )
    table = normalize_table(received)
    assert table.column_names == ["value", "key", "ordering_key", "properties", "event_time"]
    assert table.schema.equals(pa.schema([BLOCK_SCHEMA.field(name) for name in table.column_names]))


def test_names_of_send_are_taken_too() -> None:
    table = normalize_table(
        pa.RecordBatch.from_pydict({"partition_key": ["k"], "value": [b"v"], "event_timestamp": [5]})
    )
    assert table.to_pylist() == [{"value": b"v", "key": "k", "event_time": 5}]


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({"key": ["k"]}, ["value", "missing"]),
        ({"value": [1]}, ["value", "int64", "pa.binary()"]),
        ({"value": [["a"]]}, ["value", "list", "pa.binary()"]),
        ({"value": [b"v"], "key": [1]}, ["key", "int64", "pa.string()"]),
        ({"value": [b"v"], "partition_key": [1]}, ["partition_key", "int64", "pa.string()"]),
        ({"value": [b"v"], "key": [b"\xff"]}, ["key", "binary", "pa.string()"]),
        ({"value": [b"v"], "key": ["a"], "partition_key": ["a"]}, ["partition_key", "second time"]),
        ({"value": [b"v"], "properties": [{"a": "b"}]}, ["properties", "struct", "pa.map_"]),
        (
            {"value": [b"v"], "properties": pa.array([[("a", 1)]], pa.map_(pa.utf8(), pa.int64()))},
            ["properties", "int64", "pa.map_"],
        ),
        (
            {"value": [b"v"], "properties": pa.array([[("a", None)]], TEXT_MAP)},
            ["properties", "map", "without a value"],
        ),
        ({"value": [b"v"], "event_time": [1.5]}, ["event_time", "double", "timestamp"]),
        ({"value": [b"v"], "event_time": pa.array([1 << 63], pa.uint64())}, ["event_time", "uint64"]),
        ({"value": [b"v"], "event_time": [datetime.date(2024, 1, 1)]}, ["event_time", "date32", "timestamp"]),
        ({"value": [b"v"], "payload": [b"v"]}, ["payload", "binary", "rename"]),
    ],
)
def test_refusals_name_column_type_and_remedy(columns: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        normalize_table(pa.table(columns))
    for part in parts:
        assert part in str(caught.value)


def test_empty_table_and_all_null_column() -> None:
    assert split_table(normalize_table(pa.table({"value": pa.array([], pa.binary())}))) == []
    assert normalize_table(pa.table({"value": pa.nulls(2)})).column("value").to_pylist() == [None, None]


@given(
    st.lists(st.lists(st.integers(0, 300), max_size=40), max_size=12),
    st.integers(1, 20),
    st.integers(1, 2000),
)
def test_split_table_keeps_the_rows_and_the_limits(chunks: list[list[int]], rows: int, size: int) -> None:
    arrays = [pa.array([bytes(length) for length in chunk], pa.binary()) for chunk in chunks]
    table = pa.table({"value": pa.chunked_array(arrays, pa.binary())})
    pieces = split_table(table, rows, size)
    assert [value for piece in pieces for value in piece.column("value").to_pylist()] == [
        bytes(length) for chunk in chunks for length in chunk
    ]
    for piece in pieces:
        assert 0 < piece.num_rows <= rows
        assert piece.num_rows == 1 or piece.nbytes <= size


def test_split_table_counts_all_columns() -> None:
    properties = pa.array([[("name", "x" * 1000)]] * 100, TEXT_MAP)
    table = normalize_table(pa.table({"value": [b""] * 100, "properties": properties}))
    assert all(piece.nbytes <= 10_000 for piece in split_table(table, max_bytes=10_000))


def test_split_table_counts_what_columns_share() -> None:
    shared = pa.array(["x" * 100] * 100)
    table = normalize_table(pa.table({"value": shared, "key": shared}))
    pieces = split_table(table, max_bytes=15_000)
    assert sum(piece.num_rows for piece in pieces) == 100
    assert all(piece.nbytes <= 15_000 for piece in pieces)


def test_a_part_of_large_memory_is_not_cut() -> None:
    table = pa.table({"value": pa.array([bytes(100)] * 1000, pa.binary())}).slice(500, 100)
    assert [piece.num_rows for piece in split_table(table, max_bytes=12_000)] == [100]


def test_small_chunks_do_not_become_small_batches() -> None:
    table = pa.table({"value": pa.chunked_array([[b"a"]] * 1000)})
    assert [piece.num_rows for piece in split_table(table)] == [1000]


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 20), st.integers(1, 1000))
def test_split_rows_keeps_the_rows_and_the_limits(sizes: list[int], rows: int, size: int) -> None:
    ranges = split_rows(sizes, rows, size)
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(len(sizes)))
    for start, stop in ranges:
        assert 0 < stop - start <= rows
        assert stop - start == 1 or sum(sizes[start:stop]) <= size
    for start, stop in ranges[:-1]:
        assert stop - start == rows or sum(sizes[start : stop + 1]) > size


def test_tables_as_stored_are_not_looked_at() -> None:
    table = pa.table({"value": [b"v"], "key": ["k"], "event_time": pa.array([5], pa.int64())})
    assert normalize_table(table) is table
    assert normalize_table(table.to_batches()[0]).equals(table)
    turned = normalize_table(table.select(["key", "value"]))
    assert turned.column_names == ["value", "key"]
