from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import (
    ChecksumError,
    CorruptData,
    InvalidMessage,
    MessageTooBig,
    UnsupportedFormatVersion,
)
from pulsar_ray.format.block import (
    BLOCK_HEADER_SIZE,
    CHUNK,
    DELAYED,
    ENCRYPTED,
    MAX_BLOCK_SIZE,
    MAX_MESSAGE_SIZE,
    ROW_IS_ENTRY,
    check_block_size,
    encode_block,
    parse_block_header,
    parse_blocks,
    verify_block,
)
from pulsar_ray.format.checksum import Buffer, checksum
from pulsar_ray.format.metadata import NO_METADATA, BlockMetadata, ChunkInfo, EncryptionInfo
from tests.unit.format.damage import bit_flips, truncations


def block(
    payload: Buffer, metadata: BlockMetadata | None = None, message_count: int = 1, flags: int = 0
) -> bytes:
    return b"".join(
        encode_block(
            payload,
            incarnation=0xFEDCBA9876543210,
            entry_seq=41,
            first_sequence_id=7,
            last_sequence_id=6 + message_count,
            publish_time_ms=1_700_000_000_123,
            message_count=message_count,
            flags=flags,
            metadata=metadata,
        )
    )


PLAIN = block(b"payload")
WITH_FIELDS = block(b"12345678", BlockMetadata(key="k", properties={"a": "b"}))


def test_stored_bytes_never_change() -> None:
    assert PLAIN.hex() == (
        "424b010000000000480000000700000007000000010000001032547698badcfe"
        "2900000000000000070000000000000007000000000000007b68e5cf8b010000"
        "4a4522e5b2e1521a7061796c6f616400"
    )
    assert WITH_FIELDS.hex() == (
        "424b010000000000600000000800000008000000010000001032547698badcfe"
        "2900000000000000070000000000000007000000000000007b68e5cf8b010000"
        "3e6d3c1404403d5f0200010000006b06000500000081a161a162000000000000"
        "3132333435363738"
    )


def test_header_is_read_back() -> None:
    header = parse_block_header(b"xyz" + PLAIN, 3)
    verify_block(b"xyz" + PLAIN, 3, header)
    assert (header.incarnation, header.entry_seq) == (0xFEDCBA9876543210, 41)
    assert (header.first_sequence_id, header.last_sequence_id) == (7, 7)
    assert header.publish_time_ms == 1_700_000_000_123
    assert (header.payload_length, header.uncompressed_length) == (7, 7)
    assert (header.header_length, header.total_length) == (BLOCK_HEADER_SIZE, 80)
    assert (header.message_count, header.entries, header.row_is_entry) == (1, 1, False)
    assert (header.codec, header.flags, header.payload_format, header.columns) == (0, 0, 0, 0)
    assert header.metadata() == NO_METADATA
    assert "entry_seq=41" in repr(header)


def test_rows_may_be_entries() -> None:
    header = parse_block_header(block(b"", message_count=500, flags=ROW_IS_ENTRY))
    assert (header.message_count, header.entries, header.row_is_entry) == (500, 500, True)
    header = parse_block_header(block(b"", message_count=500))
    assert (header.message_count, header.entries, header.row_is_entry) == (500, 1, False)


def test_payload_need_not_be_there_to_parse_the_header() -> None:
    header = parse_block_header(WITH_FIELDS[:-8])
    assert header.metadata() == BlockMetadata(key="k", properties={"a": "b"})
    with pytest.raises(CorruptData, match="cut off 8 bytes"):
        verify_block(WITH_FIELDS[:-8], 0, header)


@pytest.mark.parametrize(
    ("metadata", "flags"),
    [
        (BlockMetadata(deliver_at=0), DELAYED),
        (BlockMetadata(delivery_times=bytes(8)), DELAYED),
        (BlockMetadata(chunk=ChunkInfo("u", 0, 2, 9)), CHUNK),
        (BlockMetadata(encryption=EncryptionInfo("AES", b"", ())), ENCRYPTED),
        (BlockMetadata(key="k"), 0),
    ],
)
def test_flags_follow_from_the_metadata(metadata: BlockMetadata, flags: int) -> None:
    assert parse_block_header(block(b"x", metadata)).flags == flags


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 4100, 100_000])
def test_large_payloads_are_not_copied(size: int) -> None:
    payload = bytes(size)
    buffers = encode_block(
        payload,
        incarnation=1,
        entry_seq=0,
        first_sequence_id=0,
        last_sequence_id=0,
        publish_time_ms=0,
    )
    assert size <= 4096 or any(buffer is payload for buffer in buffers)
    joined = b"".join(buffers)
    assert len(joined) % 8 == 0
    verify_block(joined, 0, parse_block_header(joined))


@pytest.mark.parametrize("sample", [PLAIN, WITH_FIELDS])
def test_every_truncation_is_found(sample: bytes) -> None:
    for cut in truncations(sample):
        with pytest.raises(CorruptData):
            verify_block(cut, 0, parse_block_header(cut))


@pytest.mark.parametrize("sample", [PLAIN, WITH_FIELDS])
def test_every_flipped_bit_is_found(sample: bytes) -> None:
    for bad in bit_flips(sample):
        with pytest.raises(ChecksumError):
            verify_block(bad, 0, parse_block_header(bad))


def test_damage_names_the_place() -> None:
    with pytest.raises(CorruptData) as caught:
        parse_block_header(bytes(200), 100, "a.seg")
    assert (caught.value.path, caught.value.offset) == ("a.seg", 100)


def resealed(sample: bytes, place: int, replacement: bytes) -> bytes:
    changed = sample[:place] + replacement + sample[place + len(replacement) :]
    return changed[:64] + checksum(changed[:64], changed[72:]).to_bytes(8, "little") + changed[72:]


@pytest.mark.parametrize(("place", "replacement"), [(2, b"\x02"), (4, b"\x20"), (5, b"\x80")])
def test_newer_block_is_told_from_a_damaged_one(place: int, replacement: bytes) -> None:
    with pytest.raises(UnsupportedFormatVersion):
        parse_block_header(resealed(PLAIN, place, replacement))


@pytest.mark.parametrize(
    ("place", "replacement"),
    [(0, b"\0"), (8, b"\x40"), (8, b"\x4c"), (20, b"\0\0"), (20, b"\x01\x20"), (22, b"\1")],
)
def test_contradictions_under_a_valid_checksum_are_refused(place: int, replacement: bytes) -> None:
    with pytest.raises(CorruptData):
        parse_block_header(resealed(PLAIN, place, replacement))


def test_malformed_fields_name_the_producer() -> None:
    bad = resealed(WITH_FIELDS, 72 + 2, b"\x63")
    header = parse_block_header(bad)
    verify_block(bad, 0, header)
    with pytest.raises(InvalidMessage, match="block 41 of incarnation 0xfedcba9876543210"):
        header.metadata()


def test_blocks_in_a_row_are_all_parsed() -> None:
    headers = parse_blocks(PLAIN + WITH_FIELDS + PLAIN)
    assert [header.total_length for header in headers] == [80, len(WITH_FIELDS), 80]
    assert parse_blocks(b"") == []
    for cut in truncations(PLAIN + WITH_FIELDS):
        if len(cut) not in {0, len(PLAIN)}:
            with pytest.raises(CorruptData):
                parse_blocks(cut)


@pytest.mark.parametrize("field", ["incarnation", "entry_seq", "message_count", "codec", "flags"])
@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_fields_out_of_range_are_refused(field: str, value: int) -> None:
    fields = {
        "incarnation": 1,
        "entry_seq": 0,
        "first_sequence_id": 0,
        "last_sequence_id": 0,
        "publish_time_ms": 0,
        field: value,
    }
    with pytest.raises(ValueError, match="out of range"):
        encode_block(b"", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("message_count", [0, 8193])
def test_what_no_reader_takes_is_not_encoded(message_count: int) -> None:
    with pytest.raises(ValueError, match="8192"):
        block(b"", message_count=message_count)


def test_size_limits() -> None:
    check_block_size(MAX_MESSAGE_SIZE, MAX_BLOCK_SIZE)
    with pytest.raises(MessageTooBig, match="max_message_size is 5242880"):
        check_block_size(MAX_MESSAGE_SIZE + 1, MAX_BLOCK_SIZE)
    with pytest.raises(MessageTooBig, match="netty_max_frame_size_bytes is 5253120"):
        check_block_size(0, MAX_BLOCK_SIZE + 1)
    with pytest.raises(MessageTooBig):
        check_block_size(101, 200, max_message_size=100, max_block_size=200)


@given(
    st.binary(max_size=9000),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(1, 8192),
    st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)
def test_round_trip(
    payload: bytes, incarnation: int, entry_seq: int, now_ms: int, count: int, key: str | None
) -> None:
    encoded = b"".join(
        encode_block(
            payload,
            incarnation=incarnation,
            entry_seq=entry_seq,
            first_sequence_id=3,
            last_sequence_id=2 + count,
            publish_time_ms=now_ms,
            message_count=count,
            metadata=None if key is None else BlockMetadata(key=key),
        )
    )
    header = parse_block_header(encoded)
    verify_block(encoded, 0, header)
    assert header.total_length == len(encoded)
    assert encoded[header.header_length :][: header.payload_length] == payload
    assert (header.incarnation, header.entry_seq, header.publish_time_ms) == (incarnation, entry_seq, now_ms)
    assert (header.message_count, header.metadata().key) == (count, key)


@given(st.binary(max_size=300))
def test_garbage_is_corruption(garbage: bytes) -> None:
    with pytest.raises(CorruptData):
        verify_block(garbage, 0, parse_block_header(garbage))
