"""Packets in order, exactly once, over calls that get lost, repeated, delayed and reordered.

The carrier makes *exchanges*: one end calls with the packets it has, the other answers with its own. Either
may never arrive, or twice, or late. Packets are numbered from 1 per direction; each exchange carries the
number that was last received in order, and packets that are not confirmed so are sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgpack

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.packet import MAX_PACKET_BYTES, Buffer

NumberedPackets: TypeAlias = Sequence[tuple[int, Buffer]]
Exchange: TypeAlias = tuple[int, list[tuple[int, Buffer]]]
"""(last packet received, packets with their numbers): the same in both directions."""

MAX_EARLY_BYTES = 2 * MAX_PACKET_BYTES
"""Bytes of packets kept although an earlier one is missing.

More are dropped, to come again when a call fails or none is open: the calling end should have less than this
under way.
"""


class TunnelEnd:
    """One end of a tunnel; the same class at both.

    The calling end uses `begin_call`, then `end_call` or `failed`; calls may overlap. The answering end
    uses `answer`, then `outgoing`. Sending a packet twice costs its bytes and harms nothing.
    """

    def __init__(self) -> None:
        self._unconfirmed: deque[Buffer] = deque()
        self._first_unconfirmed = 1
        self._next_to_send = 1
        self._open_calls = 0
        self._last_received = 0
        self._early: dict[int, Buffer] = {}
        self._early_bytes = 0
        self.unconfirmed_bytes = 0
        """Bytes of packets that the other end has not confirmed.

        The sender bounds them, because nothing is ever dropped here.
        """

    @property
    def last_received(self) -> int:
        """The number up to which all packets of the other end were given out."""
        return self._last_received

    @property
    def has_outgoing(self) -> bool:
        """True if the next exchange would carry packets."""
        return self._next_to_send < self._first_unconfirmed + len(self._unconfirmed)

    def send(self, packet: Buffer) -> None:
        """Queue one whole encoded packet; it must not change until it is confirmed."""
        self._unconfirmed.append(packet)
        self.unconfirmed_bytes += memoryview(packet).nbytes

    def outgoing(self, max_bytes: int) -> Exchange:
        """The next packets to send, of at most `max_bytes`.

        But at least one packet if any is due.
        """
        packets: list[tuple[int, Buffer]] = []
        skipped = self._next_to_send - self._first_unconfirmed
        size = 0
        for packet in islice(self._unconfirmed, skipped, None):
            size += memoryview(packet).nbytes
            if packets and size > max_bytes:
                break
            packets.append((self._next_to_send, packet))
            self._next_to_send += 1
        return self._last_received, packets

    def begin_call(self, max_bytes: int) -> Exchange:
        """The arguments of a call; `end_call` or `failed` must follow, once."""
        exchange = self.outgoing(max_bytes)
        self._open_calls += 1
        return exchange

    def end_call(self, last_received: int, packets: NumberedPackets) -> list[Buffer]:
        """`incoming` with the answer.

        With no other call open, what is still unconfirmed did not arrive: it is due again.
        """
        received = self.incoming(last_received, packets)
        self._open_calls -= 1
        if self._open_calls == 0:
            self._resend()
        return received

    def failed(self) -> None:
        """Note that a call failed or is given up.

        Whether its packets arrived is unknown, so they are due again.
        """
        self._open_calls -= 1
        self._resend()

    def answer(self, last_received: int, packets: NumberedPackets) -> list[Buffer]:
        """`incoming` with a call.

        The caller has what earlier answers brought, or they are lost: the rest is due again.
        """
        received = self.incoming(last_received, packets)
        self._resend()
        return received

    def incoming(self, last_received: int, packets: NumberedPackets) -> list[Buffer]:
        """Take in packets of the other end.

        Returns those that are now next in order, each once.

        Raises ProtocolError for numbers that cannot be: a confirmation of what was never sent, a packet
        number below 1.
        """
        self._confirm(last_received)
        for number, packet in packets:
            if number < 1:
                raise ProtocolError(f"packet number {number} in a tunnel")
            self._keep_early(number, packet)
        ready: list[Buffer] = []
        while self._last_received + 1 in self._early:
            self._last_received += 1
            packet = self._early.pop(self._last_received)
            self._early_bytes -= memoryview(packet).nbytes
            ready.append(packet)
        return ready

    def _keep_early(self, number: int, packet: Buffer) -> None:
        if number <= self._last_received or number in self._early:
            return
        size = memoryview(packet).nbytes
        if number != self._last_received + 1 and self._early_bytes + size > MAX_EARLY_BYTES:
            return
        self._early[number] = packet
        self._early_bytes += size

    def _confirm(self, last_received: int) -> None:
        if last_received >= self._first_unconfirmed + len(self._unconfirmed):
            raise ProtocolError(f"packet {last_received} of a tunnel is confirmed but was never sent")
        while self._first_unconfirmed <= last_received:
            self.unconfirmed_bytes -= memoryview(self._unconfirmed.popleft()).nbytes
            self._first_unconfirmed += 1
        self._next_to_send = max(self._next_to_send, self._first_unconfirmed)

    def _resend(self) -> None:
        self._next_to_send = self._first_unconfirmed


# Ray serializes every argument by itself, and tuples of tuples slowly: handing over a packed call took 545 us
# where the same things as five arguments took 741.


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
