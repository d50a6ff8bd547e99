from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import (
    ChecksumError,
    CryptoError,
    InvalidMessage,
    MessageTooBig,
    UnsupportedFormatVersion,
)
from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA, encode_rows, encode_table
from pulsar_ray.format.block import ARROW, NULL_VALUE, ROW_IS_ENTRY, encode_block
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.compression import MAX_UNCOMPRESSED_LENGTH, ZSTD, compress, decompress
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo, EncryptionInfo
from pulsar_ray.format.payload import DecodedBlock, decode_block, encode_batch, encode_single
from tests.unit.format.damage import bit_flips, truncations

CODECS = range(5)
TIME_MS = 1_700_000_000_123


def single(value: Buffer | None, codec: int = 0, metadata: BlockMetadata | None = None) -> bytes:
    return b"".join(
        encode_single(
            value,
            incarnation=0xAB,
            entry_seq=41,
            sequence_id=7,
            publish_time_ms=TIME_MS,
            codec=codec,
            metadata=metadata,
        )
    )


def batch(encoded: tuple[Buffer, int], rows: int, **changed: Any) -> bytes:
    fields: dict[str, Any] = {
        "message_count": rows,
        "incarnation": 0xAB,
        "entry_seq": 41,
        "first_sequence_id": 100,
        "last_sequence_id": 99 + rows,
        "publish_time_ms": TIME_MS,
    }
    return b"".join(encode_batch(*encoded, **(fields | changed)))


def raw(**changed: Any) -> bytes:
    fields: dict[str, Any] = {
        "payload": b"x",
        "incarnation": 0xAB,
        "entry_seq": 41,
        "first_sequence_id": 7,
        "last_sequence_id": 7,
        "publish_time_ms": TIME_MS,
    }
    return b"".join(encode_block(**(fields | changed)))


ROWS: dict[str, Any] = {
    "values": [b"a" * 50, None, b""],
    "keys": ["k", None, ""],
    "ordering_keys": [None, "o\u00e9", None],
    "properties": [{"p": "q", "": ""}, {}, None],
    "event_times": [1, None, -1],
    "sequence_ids": [100, 105, 102],
}
FULL = batch(encode_rows(**ROWS), 3)


def columns_of(block: DecodedBlock) -> dict[str, Any]:
    return {
        "values": block.values(),
        "keys": block.keys(),
        "ordering_keys": block.ordering_keys(),
        "properties": block.properties(),
        "event_times": block.event_times(),
        "sequence_ids": block.sequence_ids(),
    }


# Stored by pyarrow 25; another one may write other bytes but has to read these.
STORED_BATCH = (
    "424b01000000013f48000000600300006003000003000000ab00000000000000"
    "2900000000000000640000000000000066000000000000007b68e5cf8b010000"
    "cfec223c35a73f16ffffffff4802000014000000000000000c00160006000500"
    "08000c000c0000000003040018000000100100000000000000000a0018000c00"
    "040008000a0000007c0100001000000003000000000000000000000016000000"
    "0000000000000000010000000000000008000000000000001000000000000000"
    "1800000000000000320000000000000050000000000000000100000000000000"
    "5800000000000000100000000000000068000000000000000100000000000000"
    "7000000000000000010000000000000078000000000000001000000000000000"
    "8800000000000000030000000000000090000000000000000100000000000000"
    "98000000000000001000000000000000a8000000000000000000000000000000"
    "a8000000000000000000000000000000a8000000000000000c00000000000000"
    "b8000000000000000100000000000000c0000000000000000000000000000000"
    "c0000000000000000c00000000000000d0000000000000000100000000000000"
    "d8000000000000000100000000000000e0000000000000001800000000000000"
    "f8000000000000000000000000000000f8000000000000001800000000000000"
    "0000000009000000030000000000000001000000000000000300000000000000"
    "0100000000000000030000000000000002000000000000000300000000000000"
    "0200000000000000020000000000000000000000000000000200000000000000"
    "0000000000000000020000000000000000000000000000000300000000000000"
    "0100000000000000030000000000000000000000000000000500000000000000"
    "0000000032000000320000003200000061616161616161616161616161616161"
    "6161616161616161616161616161616161616161616161616161616161616161"
    "6161000000000000050000000000000000000000010000000100000001000000"
    "6b00000000000000020000000000000000000000000000000300000003000000"
    "6fc3a90000000000010000000000000000000000020000000200000002000000"
    "0000000001000000010000000000000070000000000000000000000001000000"
    "0100000000000000710000000000000005000000000000000100000000000000"
    "0000000000000000ffffffffffffffff64000000000000006900000000000000"
    "6600000000000000"
)


def test_stored_batch_stays_readable() -> None:
    assert columns_of(decode_block(bytes.fromhex(STORED_BATCH))) == ROWS | {
        "properties": [{"p": "q", "": ""}, {}, {}]
    }


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [b"value " * 100, b"", None])
def test_single_message(value: bytes | None, codec: int) -> None:
    encoded = single(value, codec)
    decoded = decode_block(b"123" + encoded + b"456", 3)
    assert decoded.values() == [value]
    assert (decoded.keys(), decoded.ordering_keys()) == (None, None)
    assert (decoded.properties(), decoded.event_times()) == (None, None)
    assert decoded.sequence_ids() == [7]
    assert decoded.message_count == 1
    assert decoded.header.codec == (codec if value else 0)
    assert decoded.header.uncompressed_length == len(value or b"")
    assert decoded.header.flags == (NULL_VALUE if value is None else 0)


def test_metadata_of_a_single_message() -> None:
    metadata = BlockMetadata(
        producer_name="p", key="k", ordering_key="o", event_time=5, deliver_at=9, properties={"a": "b"}
    )
    decoded = decode_block(single(b"v", metadata=metadata))
    assert decoded.metadata == metadata
    assert columns_of(decoded) == {
        "values": [b"v"],
        "keys": ["k"],
        "ordering_keys": ["o"],
        "properties": [{"a": "b"}],
        "event_times": [5],
        "sequence_ids": [7],
    }
    assert decoded.record_batch().to_pylist() == [
        {
            "value": b"v",
            "key": "k",
            "ordering_key": "o",
            "properties": [("a", "b")],
            "event_time": 5,
            "sequence_id": 7,
        }
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_batch_of_values(codec: int) -> None:
    values = [b"some value %d" % number for number in range(500)]
    decoded = decode_block(batch(encode_rows(values), 500, codec=codec))
    assert decoded.values() == values
    assert decoded.values() is decoded.values()
    assert (decoded.keys(), decoded.properties(), decoded.event_times()) == (None, None, None)
    assert decoded.sequence_ids() == list(range(100, 600))
    assert (decoded.header.codec, decoded.header.entries, decoded.header.columns) == (codec, 1, 1)


@pytest.mark.parametrize("codec", CODECS)
def test_batch_with_all_columns(codec: int) -> None:
    decoded = decode_block(batch(encode_rows(**ROWS), 3, codec=codec))
    assert columns_of(decoded) == ROWS | {"properties": [{"p": "q", "": ""}, {}, {}]}
    assert decoded.header.columns == 63


def test_rows_may_be_entries() -> None:
    header = decode_block(batch(encode_rows([b"a", b"b"]), 2, row_is_entry=True)).header
    assert (header.flags, header.entries) == (ROW_IS_ENTRY, 2)


def test_columns_without_values_are_left_out() -> None:
    payload, columns = encode_rows([b"a", b"b"], [None, None], ["o", None], [{}, None], [None, None])
    assert columns == 1 | 4
    decoded = decode_block(batch((payload, columns), 2))
    assert (decoded.keys(), decoded.ordering_keys()) == (None, ["o", None])


def test_all_tombstones() -> None:
    assert decode_block(batch(encode_rows([None, None]), 2)).values() == [None, None]


def test_metadata_of_a_batch_holds_for_every_row() -> None:
    metadata = BlockMetadata(key="k", properties={"a": "b"}, event_time=5)
    decoded = decode_block(batch(encode_rows([b"1", b"2"]), 2, metadata=metadata))
    assert decoded.keys() == ["k", "k"]
    assert decoded.properties() == [{"a": "b"}, {"a": "b"}]
    rows = decoded.record_batch().to_pylist()
    assert [row["properties"] for row in rows] == [[("a", "b")]] * 2
    assert [row["event_time"] for row in rows] == [5, 5]


@pytest.mark.parametrize("block", [single(b"v"), single(None), batch(encode_rows([b"1", None]), 2), FULL])
def test_record_batches_of_all_blocks_go_together(block: bytes) -> None:
    decoded = decode_block(b"1" + block, 1)  # unaligned, as within a packet
    table = decoded.record_batch()
    table.validate(full=True)
    assert table.schema.equals(BLOCK_SCHEMA)
    assert table.column("value").to_pylist() == decoded.values()
    assert table.column("sequence_id").to_pylist() == decoded.sequence_ids()


def test_decoding_does_not_copy_a_batch() -> None:
    buffer = pa.py_buffer(batch(encode_rows([b"x" * 10_000]), 1))
    values = decode_block(memoryview(buffer)).record_batch().column("value").buffers()[2]
    assert buffer.address <= values.address < buffer.address + buffer.size


def test_table_is_encoded_by_column_name() -> None:
    table = pa.RecordBatch.from_pydict(
        {
            "event_time": pa.array([None, 2, 3], pa.int64()),
            "value": pa.array([b"a", b"b", None], pa.binary()),
            "key": pa.array([None, None, None], pa.utf8()),
        }
    )
    payload, columns = encode_table(table.slice(1))
    assert columns == 1 | 16
    decoded = decode_block(batch((payload, columns), 2))
    assert (decoded.values(), decoded.event_times(), decoded.keys()) == ([b"b", None], [2, 3], None)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=50)),
            st.one_of(st.none(), st.text(max_size=5)),
            st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 3),
    st.booleans(),
)
def test_table_is_encoded_the_same_in_a_room(rows: list[Any], first: int, values_only: bool) -> None:
    values, keys, times = map(list, zip(*rows, strict=True))
    columns = {"value": pa.array(values, pa.binary())}
    if not values_only:
        columns |= {"key": pa.array(keys, pa.utf8()), "event_time": pa.array(times, pa.int64())}
    table = pa.RecordBatch.from_pydict(columns).slice(min(first, len(rows) - 1))
    alone, bits = encode_table(table)
    rooms = []

    def room(length: int) -> memoryview:
        rooms.append(memoryview(bytearray(length)))
        return rooms[0]

    payload, same_bits = encode_table(table, room)
    assert same_bits == bits
    assert bytes(payload) == bytes(alone)
    rooms[0][-1] ^= 1
    assert bytes(payload) != bytes(alone)
    assert encode_table(table, lambda _: None)[0] == alone


def test_the_environment_does_not_change_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.RecordBatch.from_pydict({"value": pa.array([b"a", None], pa.binary())})
    before = bytes(encode_table(table)[0])
    monkeypatch.setenv("ARROW_PRE_0_15_IPC_FORMAT", "1")
    monkeypatch.setenv("ARROW_PRE_1_0_METADATA_VERSION", "1")
    room = memoryview(bytearray(10_000))
    assert bytes(encode_table(table, lambda length: room[:length])[0]) == before
    assert room[0]  # it was written there


@pytest.mark.parametrize("columns", [{"key": pa.array(["k"])}, {"value": pa.array(["text"])}])
def test_table_with_wrong_columns_is_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="value"):
        encode_table(pa.RecordBatch.from_pydict(columns))


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ({"values": [b"a"], "keys": ["k", "l"]}, ValueError),
        ({"values": [b"a"], "keys": [1]}, TypeError),
        ({"values": [b"a", 5]}, TypeError),
        ({"values": [memoryview(bytes(8)).cast("i")]}, TypeError),
        ({"values": [b"a"], "event_times": ["x"]}, ValueError),
        ({"values": [b"a"], "properties": [{"a": None}, {"b": 1}]}, TypeError),
    ],
)
def test_wrong_rows_are_refused(rows: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        encode_rows(**rows)


def test_gaps_in_sequence_ids_need_a_column() -> None:
    with pytest.raises(ValueError, match="sequence ids"):
        batch(encode_rows([b"a", b"b"]), 2, last_sequence_id=150)
    bad = raw(payload=bytes(encode_rows([b"a"])[0]), payload_format=ARROW, columns=1, last_sequence_id=9)
    with pytest.raises(InvalidMessage, match="sequence ids"):
        decode_block(bad)


def test_chunks_are_given_as_stored() -> None:
    whole = bytes(range(256)) * 100
    packed = bytes(compress(ZSTD, whole))
    parts = []
    for chunk_id, part in enumerate((packed[:50], packed[50:])):
        metadata = BlockMetadata(chunk=ChunkInfo("p-1", chunk_id, 2, len(packed)))
        parts.append(
            decode_block(raw(payload=part, codec=ZSTD, uncompressed_length=len(whole), metadata=metadata))
        )
    stored = b"".join(part.values()[0] or b"" for part in parts)
    assert decompress(parts[0].header.codec, stored, parts[0].header.uncompressed_length) == whole


@pytest.mark.parametrize(
    "changed",
    [
        {"message_count": 2, "last_sequence_id": 8},
        {"columns": 1},
        {"flags": ROW_IS_ENTRY},
        {"flags": NULL_VALUE},
        {"last_sequence_id": 8},
        {"uncompressed_length": 2},
        {"uncompressed_length": MAX_UNCOMPRESSED_LENGTH + 1, "codec": 1},
        {"codec": 2},
        {"payload_format": ARROW, "columns": 1},
        {"payload_format": ARROW, "columns": 1, "flags": NULL_VALUE},
    ],
)
def test_blocks_a_producer_made_wrongly_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match=r"a\.seg offset 8: block 41 of incarnation 0xab"):
        decode_block(bytes(8) + raw(**changed), 8, "a.seg")


@pytest.mark.parametrize("changed", [{"payload_format": 2}, {"columns": 128}, {"codec": 5}])
def test_blocks_of_a_newer_build_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFormatVersion):
        decode_block(raw(**changed))


def test_encrypted_blocks_are_refused() -> None:
    with pytest.raises(CryptoError):
        decode_block(raw(metadata=BlockMetadata(encryption=EncryptionInfo("AES", b"", ()))))


def test_what_no_consumer_takes_is_not_encoded() -> None:
    with pytest.raises(MessageTooBig, match="uncompressed"):
        single(bytes(MAX_UNCOMPRESSED_LENGTH + 1), codec=1)


@pytest.mark.parametrize("sample", [single(b"value", metadata=BlockMetadata(key="k")), FULL])
def test_every_flipped_bit_and_truncation_is_found(sample: bytes) -> None:
    for bad in [*bit_flips(sample), *truncations(sample)]:
        with pytest.raises(ChecksumError):
            decode_block(bad)


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_i64 = st.integers(-(1 << 63), (1 << 63) - 1)
_message = st.tuples(
    st.none() | st.binary(max_size=40),
    st.none() | _text,
    st.none() | _text,
    st.dictionaries(_text, _text, max_size=3),
    st.none() | _i64,
    _i64,
)


@given(st.lists(_message, min_size=1, max_size=30), st.sampled_from(CODECS))
def test_round_trip(messages: list[tuple[Any, ...]], codec: int) -> None:
    columns = [list(column) for column in zip(*messages, strict=True)]
    decoded = decode_block(batch(encode_rows(*columns), len(messages), codec=codec))
    for (name, got), expected in zip(columns_of(decoded).items(), columns, strict=True):
        is_empty = name not in {"values", "sequence_ids"} and not any(
            row is not None and row != {} for row in expected
        )
        assert got == (None if is_empty else expected)
    assert decoded.record_batch().num_rows == len(messages)
