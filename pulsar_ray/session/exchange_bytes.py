"""A tunnel's exchange as one bytes object each way.

Ray serializes every argument by itself, and tuples of tuples slowly: handing over a packed call took 545 us
where the same things as five arguments took 741.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from pulsar_ray.errors import ProtocolError


class ExchangeCall(NamedTuple):
    """The client's part of a tunnel call; `packets` are (number, packet)."""

    session_id: int
    attachment: int
    token: bytes
    last_received: int
    packets: Sequence[tuple[int, Any]]


class ExchangeHead(NamedTuple):
    """Says whose call it is.

    Its packets, which may be large, are unpacked once that is believed.
    """

    session_id: int
    attachment: int
    token: bytes
    last_received: int


_HEAD_FIELDS = len(ExchangeHead._fields)
_MAX_HEAD_BYTES = 256
"""The head is four numbers and a token of 32 bytes."""


def pack_call(call: ExchangeCall) -> bytes:
    packed: bytes = msgpack.packb(call)
    return packed


def unpack_head(data: bytes) -> ExchangeHead:
    """The head of a call, with nothing behind it unpacked.

    Raises ProtocolError for anything but what `pack_call` made.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=_MAX_HEAD_BYTES)
    try:
        unpacker.feed(data[:_MAX_HEAD_BYTES])
        is_call = unpacker.read_array_header() == _HEAD_FIELDS + 1
        fields: list[Any] = [unpacker.unpack() for _ in range(_HEAD_FIELDS)]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"an exchange that is none: {error}") from None
    if not is_call or [*map(type, fields)] != [int, int, bytes, int]:
        raise ProtocolError("an exchange with fields of wrong types")
    return ExchangeHead(*fields)


def unpack_packets(data: bytes) -> list[tuple[int, bytes]]:
    """The packets of a call. Raises ProtocolError for anything but what `pack_call` made."""
    try:
        *_, packets = msgpack.unpackb(data)
        return [(int(number), bytes(packet)) for number, packet in packets]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"an exchange that is none: {error}") from None


def pack_answer(last_received: int, packets: Sequence[tuple[int, bytes]]) -> bytes:
    packed: bytes = msgpack.packb((last_received, packets))
    return packed


def unpack_answer(data: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """Take apart an answer of `pack_answer`. Raises ProtocolError."""
    try:
        last_received, packets = msgpack.unpackb(data)
        return int(last_received), [(int(number), bytes(packet)) for number, packet in packets]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"an answer that is none: {error}") from None
