from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import UnsupportedFormatVersion
from pulsar_ray.format.checksum import checksum
from pulsar_ray.format.frame import (
    HOLDS_MARKED_BLOCKS,
    BlockSpan,
    FrameHeader,
    FrameIncomplete,
    FrameInvalid,
    encode_frame_header,
    parse_frame_header,
)
from tests.unit.format.damage import bit_flips, truncations

ONE = encode_frame_header(
    ledger_id=(7 << 31) | 3,
    epoch=9,
    first_entry_id=1000,
    durable_entry_id=999,
    broker_time_ms=1_700_000_000_123,
    blocks=[BlockSpan(104, 1, 1)],
)
THREE = encode_frame_header(
    3, 2**64 - 1, 0, -1, -1, [BlockSpan(80, 1, 1), BlockSpan(4096, 1, 1000), BlockSpan(8, 50, 50)]
)


def fields(header: FrameHeader) -> tuple[object, ...]:
    return (
        header.ledger_id,
        header.epoch,
        header.first_entry_id,
        header.last_entry_id,
        header.durable_entry_id,
        header.broker_time_ms,
        header.header_length,
        header.payload_length,
        header.total_length,
        header.entries,
        header.block_count,
        header.blocks,
    )


def test_stored_bytes_never_change() -> None:
    assert ONE.hex() == (
        "5052464d01000000500000000100000003000080030000000900000000000000"
        "e803000000000000e7030000000000007b68e5cf8b0100006800000000000000"
        "68000000010001005a05c8a87b26e3a3"
    )
    assert THREE.hex() == (
        "5052464d0100000060000000030000000300000000000000ffffffffffffffff"
        "0000000000000000ffffffffffffffffffffffffffffffff5810000000000000"
        "5000000001000100001000000100e8030800000032003200a9f74826e0f328e6"
    )


@pytest.mark.parametrize(
    "blocks", [[BlockSpan(104, 1, 1)], [BlockSpan(104, 1, 1), BlockSpan(8, 5, 5)]], ids=["one", "two"]
)
def test_a_frame_says_whether_blocks_are_marked_and_frames_of_before_hold_none(
    blocks: list[BlockSpan],
) -> None:
    marked = encode_frame_header(3, 1, 7, 6, 5, blocks, HOLDS_MARKED_BLOCKS)
    plain = encode_frame_header(3, 1, 7, 6, 5, blocks)
    assert parse_frame_header(marked).holds_marked_blocks
    assert not parse_frame_header(plain).holds_marked_blocks
    assert fields(parse_frame_header(marked)) == fields(parse_frame_header(plain))
    assert next(place for place, (a, b) in enumerate(zip(marked, plain, strict=True)) if a != b) == 5
    # The stored samples above are of a build that knew no flags.
    assert not parse_frame_header(ONE).holds_marked_blocks
    assert not parse_frame_header(THREE).holds_marked_blocks
    for bad in bit_flips(marked):
        with pytest.raises(FrameInvalid):
            parse_frame_header(bad)


def test_one_block_is_read_back() -> None:
    header = parse_frame_header(b"12345678" + ONE, 8)
    assert fields(header) == (
        (7 << 31) | 3,
        9,
        1000,
        1000,
        999,
        1_700_000_000_123,
        80,
        104,
        184,
        1,
        1,
        (BlockSpan(104, 1, 1),),
    )
    assert "entries=1000..1000" in repr(header)


def test_several_blocks_are_read_back() -> None:
    header = parse_frame_header(memoryview(THREE))
    assert header.blocks == (BlockSpan(80, 1, 1), BlockSpan(4096, 1, 1000), BlockSpan(8, 50, 50))
    assert (header.first_entry_id, header.last_entry_id, header.entries) == (0, 51, 52)
    assert (header.header_length, header.payload_length) == (96, 4184)


@pytest.mark.parametrize("sample", [ONE, THREE])
def test_every_truncation_is_incomplete(sample: bytes) -> None:
    for cut in truncations(sample):
        with pytest.raises(FrameIncomplete) as caught:
            parse_frame_header(cut)
        assert len(cut) < caught.value.needed <= len(sample)


@pytest.mark.parametrize("sample", [ONE, THREE])
def test_every_flipped_bit_is_invalid(sample: bytes) -> None:
    for bad in bit_flips(sample):
        with pytest.raises(FrameInvalid):
            parse_frame_header(bad)


@pytest.mark.parametrize("bad", [bytes(4096), b"\xff" * 4096])
def test_filler_is_invalid(bad: bytes) -> None:
    with pytest.raises(FrameInvalid):
        parse_frame_header(bad)


def resealed(sample: bytes, place: int, replacement: bytes) -> bytes:
    body = sample[:place] + replacement + sample[place + len(replacement) : -8]
    return body + checksum(body).to_bytes(8, "little")


@pytest.mark.parametrize("sample", [ONE, THREE])
def test_newer_frame_is_told_from_a_damaged_one(sample: bytes) -> None:
    with pytest.raises(UnsupportedFormatVersion, match="version 2"):
        parse_frame_header(resealed(sample, 4, b"\x02"))


@pytest.mark.parametrize("sample", [ONE, THREE])
@pytest.mark.parametrize(
    ("place", "replacement"),
    [(5, b"\x02"), (6, b"\x01"), (56, b"\x00"), (64, b"\x01"), (68, b"\x00\x00"), (70, b"\x00\x00")],
)
def test_contradictions_under_a_valid_checksum_are_invalid(
    sample: bytes, place: int, replacement: bytes
) -> None:
    with pytest.raises(FrameInvalid, match="contradicts"):
        parse_frame_header(resealed(sample, place, replacement))


@pytest.mark.parametrize(
    "blocks",
    [
        [],
        [BlockSpan(100, 1, 1)],
        [BlockSpan(0, 1, 1)],
        [BlockSpan(80, 0, 1)],
        [BlockSpan(80, 2, 1)],
        [BlockSpan(80, 1, 1), BlockSpan(81, 1, 1)],
        [BlockSpan(80, 1, 1), BlockSpan(80, 0, 0)],
    ],
)
def test_what_cannot_be_framed_is_refused(blocks: list[BlockSpan]) -> None:
    with pytest.raises(ValueError, match=r"framed|holds"):
        encode_frame_header(1, 1, 0, -1, 0, blocks)


_spans = st.integers(1, 8192).flatmap(
    lambda messages: st.builds(
        BlockSpan,
        st.integers(1, 1 << 20).map(lambda words: 8 * words),
        st.sampled_from(sorted({1, messages})),
        st.just(messages),
    )
)
_i64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(_i64, st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 62), _i64, _i64, st.lists(_spans, min_size=1))
def test_round_trip(
    ledger_id: int, epoch: int, first: int, durable: int, now_ms: int, blocks: list[BlockSpan]
) -> None:
    header = parse_frame_header(encode_frame_header(ledger_id, epoch, first, durable, now_ms, blocks))
    assert (header.ledger_id, header.epoch, header.first_entry_id) == (ledger_id, epoch, first)
    assert (header.durable_entry_id, header.broker_time_ms) == (durable, now_ms)
    assert header.blocks == tuple(blocks)


@given(st.binary(max_size=300))
def test_garbage_is_never_a_frame(garbage: bytes) -> None:
    with pytest.raises((FrameIncomplete, FrameInvalid)):
        parse_frame_header(garbage)
