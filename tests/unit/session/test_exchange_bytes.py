"""The tunnel's exchanges as bytes: they come out as they went in, and damage is a typed error."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.tunnel import (
    ExchangeCall,
    pack_answer,
    pack_call,
    unpack_answer,
    unpack_head,
    unpack_packets,
)

NUMBERS = st.integers(0, 2**63 - 1)
PACKETS = st.lists(st.tuples(NUMBERS, st.binary()))


@given(NUMBERS, NUMBERS, st.binary(max_size=32), NUMBERS, PACKETS)
def test_a_call_comes_out_as_it_went_in(
    session_id: int, attachment: int, token: bytes, last_received: int, packets: list[tuple[int, bytes]]
) -> None:
    call = ExchangeCall(session_id, attachment, token, last_received, packets)
    packed = pack_call(call)
    assert (*unpack_head(packed), unpack_packets(packed)) == call


@given(NUMBERS, PACKETS)
def test_an_answer_comes_out_as_it_went_in(last_received: int, packets: list[tuple[int, bytes]]) -> None:
    assert unpack_answer(pack_answer(last_received, packets)) == (last_received, packets)


def test_views_are_packets_too() -> None:
    call = ExchangeCall(1, 2, b"t", 3, [(4, memoryview(b"packet")), (5, bytearray(b"x"))])
    assert unpack_packets(pack_call(call)) == [(4, b"packet"), (5, b"x")]


@given(st.binary())
def test_garbage_is_a_typed_error(data: bytes) -> None:
    for unpack in (unpack_head, unpack_packets, unpack_answer):
        try:
            unpack(data)
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    "fields",
    [(1, 2, "token", 3, []), ("1", 2, b"t", 3, []), (1, 2, b"t", None, []), (1, 2, b"t", 3), ()],
)
def test_a_wrong_head_is_a_typed_error(fields: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError):
        unpack_head(msgpack.packb(fields))


@pytest.mark.parametrize("packets", [[4], [[1, 2, 3]], None, [["x", b""]]])
def test_wrong_packets_are_a_typed_error(packets: object) -> None:
    with pytest.raises(ProtocolError):
        unpack_packets(msgpack.packb((1, 2, b"t", 3, packets)))


def test_nothing_large_is_unpacked_to_find_whose_call_it_is() -> None:
    packed = pack_call(ExchangeCall(1, 2, b"t" * 32, 3, [(number, b"x") for number in range(100_000)]))
    tracemalloc.start()
    try:
        assert unpack_head(packed).token == b"t" * 32
        assert tracemalloc.get_traced_memory()[1] < 100_000
        assert len(unpack_packets(packed)) == 100_000
        assert tracemalloc.get_traced_memory()[1] > 1_000_000
    finally:
        tracemalloc.stop()


def test_a_head_that_is_large_itself_is_a_typed_error() -> None:
    with pytest.raises(ProtocolError):
        unpack_head(pack_call(ExchangeCall(1, 2, b"t" * 10_000, 3, [])))
