from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.format.checksum import checksum
from pulsar_ray.format.segment import MAX_TOPIC_BYTES, SEGMENT_HEADER_SIZE, SegmentHeader
from tests.unit.format.damage import bit_flips, truncations

HEADER = SegmentHeader(
    ledger_id=(7 << 31) | 3,
    segment_index=2,
    epoch=9,
    topic="persistent://public/default/caf\u00e9",
    partition=4,
    created_ms=1_700_000_000_123,
    compatible_features=0x8000,
)
ENCODED = HEADER.encode()


def test_stored_bytes_never_change() -> None:
    assert len(ENCODED) == SEGMENT_HEADER_SIZE
    used = ENCODED[:-8].rstrip(b"\0")
    assert used.hex() == (
        "505241595345470a010021000010000000800000000000000000000000000000"
        "030000800300000009000000000000007b68e5cf8b0100000200000004000000"
        "70657273697374656e743a2f2f7075626c69632f64656661756c742f636166c3"
        "a9"
    )
    assert ENCODED[-8:].hex() == "693609ccd83ea5b7"


def test_header_is_read_back_and_what_follows_ignored() -> None:
    assert SegmentHeader.decode(ENCODED + b"frames", "a.seg") == HEADER
    assert SegmentHeader.decode(memoryview(ENCODED), "a.seg") == HEADER


def test_every_flipped_bit_is_corruption() -> None:
    for bad in bit_flips(ENCODED):
        with pytest.raises(CorruptData):
            SegmentHeader.decode(bad, "a.seg")


def test_every_truncation_is_corruption() -> None:
    for cut in truncations(ENCODED):
        with pytest.raises(CorruptData, match=r"a\.seg.*cut off") as caught:
            SegmentHeader.decode(cut, "a.seg")
        assert (caught.value.path, caught.value.offset) == ("a.seg", 0)


def test_empty_file_is_corruption() -> None:
    with pytest.raises(CorruptData):
        SegmentHeader.decode(bytes(SEGMENT_HEADER_SIZE), "a.seg")


def resealed(place: int, replacement: bytes) -> bytes:
    body = ENCODED[:place] + replacement + ENCODED[place + len(replacement) : -8]
    return body + checksum(body).to_bytes(8, "little")


@pytest.mark.parametrize(("place", "replacement"), [(8, b"\x02"), (24, b"\x01"), (31, b"\x80")])
def test_newer_version_or_unknown_feature_is_refused(place: int, replacement: bytes) -> None:
    with pytest.raises(UnsupportedFormatVersion, match=r"a\.seg"):
        SegmentHeader.decode(resealed(place, replacement), "a.seg")


@pytest.mark.parametrize(("place", "replacement"), [(10, b"\xff\xff"), (64, b"\xff"), (10, b"\x20")])
def test_bad_topic_under_a_valid_checksum_is_corruption(place: int, replacement: bytes) -> None:
    with pytest.raises(CorruptData, match="topic"):
        SegmentHeader.decode(resealed(place, replacement), "a.seg")


def test_topic_may_fill_the_header_and_no_more() -> None:
    longest = SegmentHeader(1, 0, 1, "t" * MAX_TOPIC_BYTES, -1, 0)
    assert SegmentHeader.decode(longest.encode(), "a.seg") == longest
    with pytest.raises(ValueError, match="4024"):
        SegmentHeader(1, 0, 1, "t" * (MAX_TOPIC_BYTES + 1), -1, 0).encode()


@given(
    st.builds(
        SegmentHeader,
        ledger_id=st.integers(0, (1 << 63) - 1),
        segment_index=st.integers(0, (1 << 32) - 1),
        epoch=st.integers(0, (1 << 64) - 1),
        topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
        partition=st.integers(-1, (1 << 31) - 1),
        created_ms=st.integers(0, (1 << 63) - 1),
        compatible_features=st.integers(0, (1 << 64) - 1),
    )
)
def test_round_trip(header: SegmentHeader) -> None:
    assert SegmentHeader.decode(header.encode(), "a.seg") == header
