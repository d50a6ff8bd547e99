from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.packet import (
    HEADER,
    HEADER_BYTES,
    HELLO,
    MAGIC,
    MAX_FIELDS_BYTES,
    MAX_PACKET_BYTES,
    OWN_BUFFER_BYTES,
    STAGING_BYTES,
    Packet,
    PacketParser,
    decode_packet,
    encode_packet,
    packet_length,
    whole_packets,
)


def joined(packet_type: int, fields: tuple[Any, ...], *body: Any) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode_packet(packet_type, fields, body))


def feed(parser: PacketParser, data: bytes, slice_bytes: int = STAGING_BYTES) -> list[Packet]:
    """Give the parser `data` as a socket would, in pieces of at most `slice_bytes`."""
    packets: list[Packet] = []
    offset = 0
    while offset < len(data):
        buffer = parser.get_buffer()
        count = min(len(buffer), slice_bytes, len(data) - offset)
        buffer[:count] = data[offset : offset + count]
        offset += count
        packets += parser.received(count)
    return packets


def test_bytes_of_a_packet() -> None:
    assert joined(20, (7, "a"), b"xy", memoryview(b"z")) == (
        b"\xa7\x14\x00\x00\x04\x00\x00\x00\x03\x00\x00\x00" + b"\x92\x07\xa1a" + b"xyz"
    )


def test_bytes_of_several_packets() -> None:
    packets = [b"".join(encode_packet(7, [number], [b"body"] * number)) for number in range(3)]
    assert whole_packets(b"".join(packets)) == packets
    assert whole_packets(packets[1])[0] is packets[1]


def test_body_buffers_are_passed_on_uncopied() -> None:
    body = bytearray(b"payload")
    buffers = encode_packet(20, (), [body])
    assert buffers[1] is body


def test_a_body_of_wide_items_counts_its_bytes() -> None:
    body = memoryview(bytes(16)).cast("q")
    assert packet_length(encode_packet(20, (), [body])[0]) == HEADER_BYTES + 1 + 16


packets_strategy = st.lists(
    st.tuples(
        st.integers(4, 255),
        st.lists(st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.none(), max_size=4).map(tuple),
        st.integers(0, 300)
        | st.sampled_from([OWN_BUFFER_BYTES - 20, OWN_BUFFER_BYTES + 1, 3 * STAGING_BYTES]),
    ),
    max_size=6,
)


@given(
    packets_strategy,
    st.integers(1, 40) | st.sampled_from([1000, OWN_BUFFER_BYTES, STAGING_BYTES, 2 * STAGING_BYTES]),
)
def test_packets_come_out_as_they_went_in(
    packets: list[tuple[int, tuple[Any, ...], int]], slice_bytes: int
) -> None:
    if sum(size for _, _, size in packets) > 1000:
        slice_bytes = max(slice_bytes, 1000)
    sent = [(kind, fields, bytes([index % 251]) * size) for index, (kind, fields, size) in enumerate(packets)]
    parser = PacketParser()
    received = feed(parser, b"".join(joined(kind, fields, body) for kind, fields, body in sent), slice_bytes)
    assert [(packet.type, packet.fields, packet.body.tobytes()) for packet in received] == sent
    assert parser.buffered_bytes == 0


def test_bodies_outlive_the_next_reads() -> None:
    parser = PacketParser()
    small, large = joined(20, (1,), b"s" * 100), joined(20, (2,), b"l" * OWN_BUFFER_BYTES)
    kept = feed(parser, small + large)
    feed(parser, joined(20, (3,), b"x" * 1000) * 300 + joined(20, (4,), b"x" * 2 * OWN_BUFFER_BYTES))
    assert kept[0].body == b"s" * 100
    assert kept[1].body == b"l" * OWN_BUFFER_BYTES
    assert all(packet.body.readonly for packet in kept)


def test_one_staging_buffer_serves_several_parsers() -> None:
    staging = bytearray(STAGING_BYTES)
    parsers = [PacketParser(staging) for _ in range(3)]
    data = [joined(20, (number,), bytes([number]) * 5000) for number in range(3)]
    halves = [feed(parser, packet[:2500]) for parser, packet in zip(parsers, data, strict=True)]
    assert halves == [[], [], []]
    for number, parser in enumerate(parsers):
        (packet,) = feed(parser, data[number][2500:])
        assert packet.fields == (number,)
        assert packet.body == bytes([number]) * 5000


def test_memory_follows_what_arrived_not_what_was_announced() -> None:
    parser = PacketParser()
    data = joined(20, (), bytes(5 * 1024 * 1024))
    assert feed(parser, data[:100]) == []
    assert parser.buffered_bytes <= OWN_BUFFER_BYTES
    assert feed(parser, data[100:300_000]) == []
    assert parser.buffered_bytes <= 4 * 300_000
    (packet,) = feed(parser, data[300_000:])
    assert packet.body.nbytes == 5 * 1024 * 1024
    assert parser.buffered_bytes == 0


def test_every_truncation_waits_for_more() -> None:
    data = joined(20, (1, "two", b"three"), b"body")
    for length in range(len(data)):
        parser = PacketParser()
        assert feed(parser, data[:length]) == []
        assert len(feed(parser, data[length:])) == 1
        with pytest.raises(ProtocolError):
            decode_packet(data[:length])


@given(st.binary(max_size=400))
def test_garbage_is_refused_or_waits(data: bytes) -> None:
    parser = PacketParser()
    try:
        feed(parser, data)
    except ProtocolError:
        pass
    assert parser.buffered_bytes <= len(data) + OWN_BUFFER_BYTES


@given(st.binary(min_size=1, max_size=200))
def test_garbage_fields_are_refused_or_an_array(data: bytes) -> None:
    packet = struct.pack("<BBHII", 0xA7, 20, 0, len(data), 0) + data
    try:
        (parsed,) = feed(PacketParser(), packet)
    except ProtocolError:
        return
    assert type(parsed.fields) is tuple


@given(st.integers(0, 8 * 24), st.integers(1, 60))
def test_a_flipped_bit_raises_nothing_else(bit: int, slice_bytes: int) -> None:
    data = bytearray(joined(20, (1, "two"), b"body-bytes"))
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    try:
        feed(PacketParser(), bytes(data), slice_bytes)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(struct.pack("<BBHII", 0xA6, 20, 0, 1, 0), id="magic"),
        pytest.param(struct.pack("<BBHII", 0xA7, 20, 1, 1, 0), id="flags"),
        pytest.param(struct.pack("<BBHII", 0xA7, 20, 0, 1, MAX_PACKET_BYTES), id="too long"),
        pytest.param(struct.pack("<BBHII", 0xA7, 20, 0, 0xFFFFFFFF, 0xFFFFFFFF), id="overflow"),
        pytest.param(struct.pack("<BBHII", 0xA7, 20, 0, MAX_FIELDS_BYTES + 1, 0), id="too many fields"),
    ],
)
def test_bad_headers_are_refused_before_anything_follows(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        feed(PacketParser(), header)
    with pytest.raises(ProtocolError):
        packet_length(header)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x01", id="a number"),
        pytest.param(msgpack.packb({"a": 1}), id="a map"),
        pytest.param(b"\x91", id="cut off"),
        pytest.param(b"\x90\x90", id="two arrays"),
        pytest.param(b"\xdd\x7f\xff\xff\xff", id="an array of two billion items"),
        pytest.param(b"\x91" * 2000 + b"\x90", id="two thousand levels"),
        pytest.param(b"\x91\xa1\xff", id="invalid UTF-8"),
    ],
)
def test_bad_fields_are_refused(fields: bytes) -> None:
    with pytest.raises(ProtocolError):
        feed(PacketParser(), struct.pack("<BBHII", 0xA7, 20, 0, len(fields), 0) + fields)


def test_the_limit_can_be_raised_between_packets() -> None:
    parser = PacketParser(max_packet_bytes=256)
    assert len(feed(parser, joined(1, (1,), bytes(200)))) == 1
    with pytest.raises(ProtocolError):
        feed(parser, joined(1, (1,), bytes(300)))
    parser = PacketParser(max_packet_bytes=256)
    parser.max_packet_bytes = MAX_PACKET_BYTES
    assert len(feed(parser, joined(1, (1,), bytes(MAX_PACKET_BYTES - HEADER_BYTES - 2)))) == 1


def test_too_large_a_packet_is_not_encoded() -> None:
    with pytest.raises(ProtocolError):
        encode_packet(20, (), [bytes(MAX_PACKET_BYTES)])
    with pytest.raises(ProtocolError):
        encode_packet(20, (bytes(MAX_FIELDS_BYTES),))


def test_arrays_get_no_more_places_than_there_are_bytes() -> None:
    """Three kilobytes that claim 65,535 items a thousand times, inside of each other."""
    fields = b"\xdc\xff\xff" * 1000
    data = HEADER.pack(MAGIC, HELLO, 0, len(fields), 0) + fields
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_packet(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
