"""Rows that share columns: bytes, damage, and single rows (ADR 0129)."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.errors import InvalidMessage, PulsarException
from pulsar_ray.format.block import COLUMNAR, KEY_COLUMN, VALUE_COLUMN
from pulsar_ray.format.columnar import columns_of, row_of_bytes
from pulsar_ray.format.key_columns import decode_keys
from pulsar_ray.format.payload import decode_block, encode_batch, encode_rows, encode_table, rest_of_block
from pulsar_ray.format.validation import MOST_EMPTY_ITEMS, check_given

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("state", pa.dictionary(pa.int8(), pa.string())),
        pa.field("lines", pa.list_(pa.struct([pa.field("price", pa.decimal128(9, 2))]))),
    ]
)
ROWS: list[dict[str, Any] | None] = [
    {"id": 1, "state": "new", "lines": [{"price": Decimal("1.50")}]},
    None,
    {"id": 3, "state": None, "lines": []},
    {"id": 4, "state": "paid", "lines": None},
]


def rows(given: list[dict[str, Any] | None] = ROWS) -> pa.StructArray:
    return pa.array(given, pa.struct(list(SCHEMA)))


def block(values: Any, codec: int = 0) -> bytes:
    payload, columns = encode_rows(values, keys=["a", None, "c", "a"][: len(values)])
    assert columns == VALUE_COLUMN | KEY_COLUMN | COLUMNAR
    buffers = encode_batch(
        payload,
        columns,
        message_count=len(values),
        incarnation=7,
        entry_seq=0,
        first_sequence_id=5,
        last_sequence_id=4 + len(values),
        publish_time_ms=1,
        codec=codec,
    )
    return b"".join(buffers)


@pytest.mark.parametrize("codec", [0, 1, 3])
def test_rows_come_back_with_their_keys(codec: int) -> None:
    decoded = decode_block(block(rows(), codec))
    assert decoded.is_columnar
    assert decoded.rows().to_pylist() == ROWS
    assert columns_of(decoded.rows()).schema == SCHEMA
    assert decoded.keys() == ["a", None, "c", "a"]


def test_brokers_find_keys_as_in_all_batches() -> None:
    payload, columns = encode_rows(rows(), keys=["a", None, "c", "a"])
    (keys,) = decode_keys(payload, columns, 4)
    assert keys.to_pylist() == ["a", None, "c", "a"]


def test_each_row_has_the_bytes_that_it_would_have_alone() -> None:
    first, second, third, fourth = decode_block(block(rows())).values()
    assert second is None
    for payload, row in ((first, ROWS[0]), (third, ROWS[2]), (fourth, ROWS[3])):
        assert payload is not None
        assert row_of_bytes(payload, SCHEMA).to_pylist() == [row]


def test_the_rest_of_a_block_has_the_other_rows() -> None:
    rest = rest_of_block([block(rows())], stored_id=5)
    decoded = decode_block(b"".join(rest.buffers))
    assert decoded.rows().to_pylist() == ROWS[1:]
    assert decoded.keys() == [None, "c", "a"]


def test_slices_and_large_dictionaries_are_made_small() -> None:
    large = pa.array([f"{number:0100d}" for number in range(1000)]).dictionary_encode()
    whole = pa.StructArray.from_arrays([large], names=["d"])
    payload, _ = encode_rows(whole.slice(500, 3))
    assert len(payload) < 3000


def test_what_is_stored_does_not_change() -> None:
    payload, _ = encode_rows(pa.array([{"a": 1}, {"a": 2}], pa.struct([pa.field("a", pa.int32())])))
    stream = pa.ipc.read_record_batch(pa.py_buffer(payload), pa.schema([("value", pa.binary())])).column(0)
    assert stream[1].as_py() == b""
    (batch,) = pa.ipc.open_stream(stream[0].as_py())
    assert batch.to_pylist() == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("names", [["id", "state", "lines"], ["id", "lines"]], ids=["dictionaries", "plain"])
def test_damage_is_an_error_and_no_crash(names: list[str]) -> None:
    whole = rows()
    columns_given = [whole.field(name) for name in names]
    fields = [SCHEMA.field(name) for name in names]
    given = pa.StructArray.from_arrays(columns_given, fields=fields, mask=whole.is_null())
    payload, columns = encode_rows(given)
    chance = random.Random(5)
    for _ in range(400):
        damaged = bytearray(payload)
        for _ in range(chance.randint(1, 8)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if chance.random() < 0.3:
            damaged = damaged[: chance.randrange(len(damaged))]
        buffers = encode_batch(
            bytes(damaged),
            columns,
            message_count=4,
            incarnation=7,
            entry_seq=0,
            first_sequence_id=5,
            last_sequence_id=8,
            publish_time_ms=1,
        )
        try:
            decoded = decode_block(b"".join(buffers))
            decoded.rows().to_pylist()
            decoded.values()
        except (PulsarException, ValueError, OverflowError):
            continue


def test_blocks_of_several_schemas_come_by_turns() -> None:
    kinds = [pa.struct([(f"c{number}", pa.int32()) for number in range(width)]) for width in (1, 2, 700)]
    for _ in range(2):
        for kind in kinds:
            given = pa.array([{"c0": 1}, {"c0": None}], kind)
            assert decode_block(block(given)).rows().equals(given)


def test_a_compressed_body_is_refused() -> None:
    schema = pa.schema([("a", pa.int64())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict({"a": list(range(1000))}, schema=schema))
    stream = sink.getvalue().to_pybytes()
    payload, columns = encode_rows([stream, *[b""] * 999])
    buffers = encode_batch(
        payload,
        columns | COLUMNAR,
        message_count=1000,
        incarnation=7,
        entry_seq=0,
        first_sequence_id=0,
        last_sequence_id=999,
        publish_time_ms=1,
    )
    with pytest.raises(InvalidMessage, match="compressed"):
        decode_block(b"".join(buffers)).rows()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_rows_written_in_place_are_those_that_were_copied(count: int) -> None:
    given = pa.array([{"a": number, "b": "x" * number} for number in range(count)])
    batch = pa.RecordBatch.from_arrays([given], names=["value"])
    in_place, columns = encode_table(batch)
    copied, same_columns = encode_rows(given)
    assert columns == same_columns
    assert bytes(in_place) == bytes(copied)
    memory = memoryview(bytearray(1 << 16))
    roomy, _ = encode_table(batch, lambda length: memory[:length])
    assert bytes(roomy) == bytes(copied)


def in_one_list(items: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items)


MANY = MOST_EMPTY_ITEMS + 1
NULLS = pa.nulls(MANY)
NO_BYTES = pa.array([b""] * 1000, pa.binary(0))
BOMBS = [
    in_one_list(NULLS),
    in_one_list(in_one_list(NULLS)),
    in_one_list(pa.StructArray.from_arrays([NULLS], ["x"])),
    in_one_list(pa.Array.from_buffers(pa.binary(0), MANY, [None, pa.py_buffer(b"")])),
    pa.FixedSizeListArray.from_arrays(NULLS, MANY),
    pa.StructArray.from_arrays([in_one_list(NULLS)], ["x"]),
    pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), in_one_list(NULLS)),
]


@pytest.mark.parametrize("column", BOMBS, ids=lambda column: str(column.type))
def test_a_few_bytes_make_no_millions_of_items(column: pa.Array) -> None:
    """Each of them would take memory where it becomes a value."""
    schema = pa.schema([pa.field("x", column.type)])
    batch = pa.RecordBatch.from_arrays([column], schema=schema)
    payload = batch.serialize().to_pybytes()
    assert len(payload) < 1000
    with pytest.raises(ValueError, match="take no bytes"):
        row_of_bytes(payload, schema)
    encoded = block(batch.to_struct_array())
    with pytest.raises(InvalidMessage, match="take no bytes"):
        decode_block(encoded).rows()
    with pytest.raises(ValueError, match="take no bytes"):
        check_given(pa.Table.from_batches([batch]))


@pytest.mark.parametrize("column", [in_one_list(pa.nulls(1000)), in_one_list(NO_BYTES), pa.nulls(1)])
def test_some_items_without_bytes_are_read(column: pa.Array) -> None:
    schema = pa.schema([pa.field("x", column.type)])
    batch = pa.RecordBatch.from_arrays([column], schema=schema)
    assert row_of_bytes(batch.serialize().to_pybytes(), schema).equals(batch)
