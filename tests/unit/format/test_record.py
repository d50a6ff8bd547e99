from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.format.checksum import checksum
from pulsar_ray.ledger.record_log import encode_record, encode_records, read_records
from tests.unit.format.damage import bit_flips, truncations

RECORDS: list[tuple[int, Any]] = [
    (1, ["snapshot", 5]),
    (2, {"ledger": 7, "name": "s\u00fcd"}),
    (255, b"\x00\xff"),
]
WRITES = [encode_record(*record) for record in RECORDS]
LOG = b"".join(WRITES)
ENDS = [len(b"".join(WRITES[: count + 1])) for count in range(len(WRITES))]


def test_stored_bytes_never_change() -> None:
    assert (
        encode_record(2, {"ledger": 7}).hex() == "1d000000020100000000000081a66c656467657207fb543b4bf95f7ab6"
    )
    assert encode_records([(1, None), (2, 3)]).hex() == (
        "150000000101000000000000c099d159b11fb111ab1500000002010000150000000395d61e3db1b78b36"
    )


def test_records_are_read_back_with_their_ends() -> None:
    expected = [(*record, end) for record, end in zip(RECORDS, ENDS, strict=True)]
    assert list(read_records(LOG)) == expected
    assert list(read_records(memoryview(bytearray(LOG)))) == expected


def test_every_truncation_ends_the_log_before_the_torn_record() -> None:
    for cut in truncations(LOG):
        whole = sum(end <= len(cut) for end in ENDS)
        assert [record[:2] for record in read_records(cut)] == RECORDS[:whole]


def test_zeros_behind_the_log_are_its_end() -> None:
    assert [record[:2] for record in read_records(LOG + bytes(100_000))] == RECORDS


def test_every_flipped_bit_before_a_later_write_is_corruption() -> None:
    for place, bad in enumerate(bit_flips(LOG[: ENDS[1]])):
        damaged_record = 0 if place < 8 * ENDS[0] else 1
        records = read_records(bad + WRITES[2], "a.log")
        assert [next(records)[:2] for _ in range(damaged_record)] == RECORDS[:damaged_record]
        with pytest.raises(CorruptData, match=r"a\.log") as caught:
            next(records)
        assert caught.value.offset == [0, ENDS[0]][damaged_record]


def test_every_flipped_bit_in_the_last_write_is_a_torn_tail() -> None:
    for bad in bit_flips(WRITES[2]):
        assert [record[:2] for record in read_records(LOG[: ENDS[1]] + bad)] == RECORDS[:2]


def test_a_hole_within_one_write_is_a_torn_tail() -> None:
    """A power cut leaves any subset of the last write's pages, so a good record may follow a bad one."""
    group = encode_records(RECORDS)
    holed = WRITES[0] + group[: ENDS[0]] + bytes(ENDS[1] - ENDS[0]) + group[ENDS[1] :]
    assert [record[:2] for record in read_records(holed)] == [RECORDS[0], RECORDS[0]]
    with pytest.raises(CorruptData):
        list(read_records(holed + WRITES[0]))


def resealed(place: int, replacement: bytes) -> bytes:
    body = WRITES[0][:place] + replacement + WRITES[0][place + len(replacement) : -8]
    return body + checksum(body).to_bytes(8, "little")


def test_newer_record_is_refused() -> None:
    with pytest.raises(UnsupportedFormatVersion, match=r"a\.log.*version 2"):
        list(read_records(resealed(5, b"\x02"), "a.log"))


def test_payload_that_is_no_msgpack_is_corruption() -> None:
    with pytest.raises(CorruptData, match="msgpack"):
        list(read_records(resealed(12, b"\xc1"), "a.log"))


_payloads = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 99), inner),
    max_leaves=10,
)


@given(st.lists(st.tuples(st.integers(0, 255), _payloads)), st.booleans())
def test_round_trip(records: list[tuple[int, Any]], together: bool) -> None:
    log = encode_records(records) if together else b"".join(encode_record(*record) for record in records)
    read = list(read_records(log))
    assert [record[:2] for record in read] == records
    assert not read or read[-1][2] == len(log)


@given(st.binary(max_size=200))
def test_garbage_is_an_empty_log(garbage: bytes) -> None:
    assert list(read_records(garbage)) == []
