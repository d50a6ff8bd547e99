"""The tunnel's exchanges as bytes: they come out as they went in, and damage is a typed error."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.exchange_bytes import (
    ExchangeCall,
    pack_answer,
    pack_call,
    unpack_answer,
    unpack_call,
)

NUMBERS = st.integers(0, 2**63 - 1)
PACKETS = st.lists(st.tuples(NUMBERS, st.binary()))


@given(NUMBERS, NUMBERS, st.binary(), NUMBERS, PACKETS)
def test_a_call_comes_out_as_it_went_in(
    session_id: int, attachment: int, token: bytes, last_received: int, packets: list[tuple[int, bytes]]
) -> None:
    call = ExchangeCall(session_id, attachment, token, last_received, packets)
    assert unpack_call(pack_call(call)) == call


@given(NUMBERS, PACKETS)
def test_an_answer_comes_out_as_it_went_in(last_received: int, packets: list[tuple[int, bytes]]) -> None:
    assert unpack_answer(pack_answer(last_received, packets)) == (last_received, packets)


def test_views_are_packets_too() -> None:
    call = ExchangeCall(1, 2, b"t", 3, [(4, memoryview(b"packet")), (5, bytearray(b"x"))])
    assert unpack_call(pack_call(call)).packets == [(4, b"packet"), (5, b"x")]


@given(st.binary())
def test_garbage_is_a_typed_error(data: bytes) -> None:
    for unpack in (unpack_call, unpack_answer):
        try:
            unpack(data)
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    "fields",
    [(1, 2, "token", 3, []), ("1", 2, b"t", 3, []), (1, 2, b"t", None, []), (1, 2, b"t", 3, [4]), ()],
)
def test_wrong_fields_are_a_typed_error(fields: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError):
        unpack_call(msgpack.packb(fields))
