from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import UnsupportedFormatVersion
from pulsar_ray.format.metadata import (
    NO_METADATA,
    TAG_CHUNK,
    TAG_DELIVERY_TIMES,
    TAG_ENCRYPTION,
    TAG_EVENT_TIME,
    TAG_KEY,
    TAG_PROPERTIES,
    TAG_TRANSACTION,
    BlockMetadata,
    ChunkInfo,
    EncryptionInfo,
    TransactionId,
    decode_metadata,
    encode_metadata,
    encode_producer_fields,
)
from tests.unit.format.damage import bit_flips, truncations

FULL = BlockMetadata(
    producer_name="p\u00e9",
    key="k",
    ordering_key="o",
    event_time=1_700_000_000_123,
    deliver_at=-1,
    properties={"a": "b", "": "\u20ac"},
    schema_version=b"\x00\x01",
    chunk=ChunkInfo("p-1", 2, 3, 12_000_000),
    transaction=TransactionId(2**64 - 1, 7),
    encryption=EncryptionInfo("AES", b"iv", (("key", b"\x01", {"v": "1"}),)),
    unknown=((0x100, b"later"),),
)
ENCODED = encode_metadata(FULL)


def test_stored_bytes_never_change() -> None:
    assert ENCODED.hex() == (
        "01000300000070c3a90200010000006b0300010000006f0400080000007b68e5"
        "cf8b010000050008000000ffffffffffffffff06000a00000082a161a162a0a3"
        "e282ac070002000000000108800c00000094a3702d310203ce00b71b00098010"
        "000000ffffffffffffffff07000000000000000a801700000093a3414553c402"
        "69769193a36b6579c4010181a176a1310001050000006c617465720000000000"
    )


def test_fields_are_read_back() -> None:
    assert len(ENCODED) % 8 == 0
    assert decode_metadata(ENCODED) == FULL
    assert encode_metadata(NO_METADATA) == b""
    assert decode_metadata(b"") == NO_METADATA


def test_empty_strings_differ_from_missing_ones() -> None:
    empty = BlockMetadata(key="", ordering_key="", properties={}, event_time=0)
    assert decode_metadata(encode_metadata(empty)) == empty


@pytest.mark.parametrize("name", ["", "p", "producer-\u00e9"])
def test_a_producer_s_name_alone(name: str) -> None:
    assert encode_producer_fields(name) == encode_metadata(BlockMetadata(producer_name=name))


def test_damage_is_never_more_than_a_value_error() -> None:
    """The block's checksum finds damage; this is about fields a producer made wrongly."""
    for bad in [*bit_flips(ENCODED), *truncations(ENCODED)]:
        with contextlib.suppress(ValueError, UnsupportedFormatVersion):
            decode_metadata(bad)


def field(tag: int, value: bytes) -> bytes:
    encoded = tag.to_bytes(2, "little") + len(value).to_bytes(4, "little") + value
    return encoded + bytes(-len(encoded) % 8)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (field(TAG_KEY, b"\xff"), "field 0x2"),
        (field(TAG_EVENT_TIME, b"1234567"), "field 0x4"),
        (field(TAG_TRANSACTION, b"1234567"), "field 0x8009"),
        (field(TAG_PROPERTIES, b"\xc1"), "field 0x6"),
        (field(TAG_PROPERTIES, msgpack.packb([])), "not a dict"),
        (field(TAG_PROPERTIES, msgpack.packb({"a": 1})), "not a pair of str"),
        (field(TAG_PROPERTIES, msgpack.packb({"a": "b"}) + b"\0"), "field 0x6"),
        (field(TAG_PROPERTIES, b"\x91" * 5000), "field 0x6"),
        (field(TAG_CHUNK, msgpack.packb(["u", 0, 1])), "field 0x8008"),
        (field(TAG_CHUNK, msgpack.packb(["u", 0, "1", 5])), "wrong types"),
        (field(TAG_CHUNK, msgpack.packb(["u", 3, 3, 5])), "out of range"),
        (field(TAG_ENCRYPTION, msgpack.packb(["AES", "iv", []])), "wrong types"),
        (field(TAG_DELIVERY_TIMES, b"1234567"), "field 0xb"),
        (field(TAG_DELIVERY_TIMES, b""), "no times"),
        (field(TAG_ENCRYPTION, msgpack.packb(["AES", b"iv", [["n", "k", {}]]])), "wrong types"),
        (b"\x02\x00\x63\x00\x00\x00kk", "runs out"),
        (b"\x02\x00\x01\x00\x00\x00k\x02\x00\x01\x00\x00\x00k\0\0", "twice"),
        (field(TAG_KEY, b"kk") + bytes(8), "behind the last"),
        (b"\x02\x00\x01\x00\x00\x00k\x01", "behind the last"),
    ],
)
def test_malformed_fields_are_refused(fields: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode_metadata(fields)


def test_unknown_fields_are_kept_unless_required() -> None:
    assert decode_metadata(field(0x7FF0, b"xy")).unknown == ((0x7FF0, b"xy"),)
    with pytest.raises(UnsupportedFormatVersion, match="0xfff0"):
        decode_metadata(field(0xFFF0, b"xy"))


@pytest.mark.parametrize(
    "metadata",
    [
        BlockMetadata(event_time=1 << 63),
        BlockMetadata(properties={"a": 1}),  # type: ignore[dict-item]
        BlockMetadata(properties={b"a": "b"}),  # type: ignore[dict-item]
        BlockMetadata(key="\ud800"),
    ],
)
def test_wrong_values_are_refused_when_encoding(metadata: BlockMetadata) -> None:
    with pytest.raises(ValueError):
        encode_metadata(metadata)


_text = st.text(st.characters(exclude_categories=["Cs"]))
_i64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    st.builds(
        BlockMetadata,
        producer_name=st.none() | _text,
        key=st.none() | _text,
        ordering_key=st.none() | _text,
        event_time=st.none() | _i64,
        deliver_at=st.none() | _i64,
        properties=st.none() | st.dictionaries(_text, _text),
        schema_version=st.none() | st.binary(),
        chunk=st.none() | st.builds(ChunkInfo, _text, st.just(1), st.integers(2, 9), st.integers(0, 1 << 40)),
        transaction=st.none(),
        encryption=st.none(),
        delivery_times=st.none() | st.lists(st.binary(min_size=8, max_size=8), min_size=1).map(b"".join),
        unknown=st.just(()),
    )
)
def test_round_trip(metadata: BlockMetadata) -> None:
    encoded = encode_metadata(metadata)
    assert len(encoded) % 8 == 0
    assert decode_metadata(encoded) == metadata


@given(st.binary())
def test_garbage_is_never_more_than_a_value_error(garbage: bytes) -> None:
    with contextlib.suppress(ValueError, UnsupportedFormatVersion):
        decode_metadata(garbage)
