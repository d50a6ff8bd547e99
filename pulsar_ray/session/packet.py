"""The bytes of packets: what carries a session's requests and replies, on whatever carrier.

offset  size  field
     0     1  magic 0xA7
     1     1  type (1 hello, 2 welcome, 3 error, 4 and 5 of lane/shared_memory.py: the carrier's own; others
              in session/requests.py)
     2     2  flags, 0 in this protocol version
     4     4  fields_length
     8     4  body_length
    12     n  fields: one msgpack array
  12+n     m  body: entry bytes, verbatim

All numbers are little-endian. A packet is at most 8 MiB, its fields at most 1 MiB.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgpack

from pulsar_ray.errors import ProtocolError
from pulsar_ray.format.block_memory import BlockMemory
from pulsar_ray.numpy_on_demand import np

Buffer: TypeAlias = Any
"""Anything with the buffer protocol; it must not change until the carrier has written it."""

HEADER = struct.Struct("<BBHII")
HEADER_BYTES = HEADER.size
_unpack_header = HEADER.unpack_from
MAGIC = 0xA7

HELLO = 1
WELCOME = 2
ERROR = 3
CARRIER_TYPES = frozenset((HELLO, WELCOME, ERROR))

MAX_PACKET_BYTES = 8 * 1024 * 1024
MAX_FIELDS_BYTES = 1024 * 1024
MAX_FIELDS_ITEMS = 65_536
"""The longest single array or map inside the fields.

Without the limit a few bytes could ask for gigabytes.
"""

STAGING_BYTES = 256 * 1024
OWN_BUFFER_BYTES = 64 * 1024
"""Receive packets longer than this into a buffer of their own.

Shorter ones go through the staging buffer.
"""
WHOLE_BUFFER_BYTES = 1536 * 1024
"""Make such a buffer whole, uninitialised, up to this size.

The part that has not arrived yet takes no memory. Larger buffers would get huge pages, so they grow, and are
made whole once a quarter has arrived.
"""
_GROWTH = 4
_NO_BODY = memoryview(b"")


class Packet(NamedTuple):
    """One received packet.

    `body` is read-only and owns its bytes: it may be held as long as needed.
    """

    type: int
    fields: tuple[Any, ...]
    body: memoryview


_new_packet: Callable[[tuple[int, tuple[Any, ...], memoryview]], Packet] = partial(tuple.__new__, Packet)
"""As `Packet(...)`, without the function that a NamedTuple puts before it."""


def encode_packet(
    packet_type: int, fields: Sequence[Any], body_buffers: Sequence[Buffer] = ()
) -> list[Buffer]:
    """Encode a packet as buffers to write one after the other.

    The body's buffers are passed on, not copied.

    Raises ProtocolError when the packet would be longer than a receiver accepts.
    """
    return [packet_head(packet_type, msgpack.packb(fields), total_bytes(body_buffers)), *body_buffers]


def packet_head(packet_type: int, packed: bytes, body_length: int) -> bytes:
    """Encode header and packed fields, which stand before the body. Raises as `encode_packet`."""
    if len(packed) > MAX_FIELDS_BYTES:
        raise ProtocolError(f"fields of {len(packed)} bytes in one packet; at most {MAX_FIELDS_BYTES}")
    total = HEADER_BYTES + len(packed) + body_length
    if total > MAX_PACKET_BYTES:
        raise ProtocolError(f"packet of {total} bytes; at most {MAX_PACKET_BYTES}")
    return HEADER.pack(MAGIC, packet_type, 0, len(packed), body_length) + packed


def buffer_bytes(buffer: Buffer) -> int:
    """The size of a buffer, whatever its item size."""
    return len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes


def total_bytes(buffers: Sequence[Buffer]) -> int:
    """The size of all of them together."""
    total = 0
    for buffer in buffers:
        total += len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes
    return total


def packet_length(header: Buffer) -> int:
    """The length of the whole packet that begins with this header.

    Raises ProtocolError if it can be none.
    """
    return _parse_header(header)[2]


def whole_packets(data: bytes) -> list[bytes]:
    """The packets that these bytes consist of; a single one is not copied."""
    packets = []
    while data:
        length = packet_length(data)
        packets.append(data[:length])
        data = data[length:]
    return packets


def decode_packet(data: Buffer) -> Packet:
    """Decode one whole packet from exactly its bytes.

    The body refers to `data`, which must not change afterwards.

    Raises ProtocolError for anything else than one well-formed packet.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < HEADER_BYTES:
        raise ProtocolError(f"packet cut off after {view.nbytes} bytes")
    packet_type, fields_length, total = _parse_header(view)
    if total != view.nbytes:
        raise ProtocolError(f"packet of {total} bytes in {view.nbytes} bytes")
    fields_end = HEADER_BYTES + fields_length
    return Packet(packet_type, _decode_fields(view[HEADER_BYTES:fields_end]), view[fields_end:].toreadonly())


def _parse_header(data: Buffer) -> tuple[int, int, int]:
    """(type, fields length, length of the whole packet) of the header in front of `data`."""
    magic, packet_type, flags, fields_length, body_length = _unpack_header(data, 0)
    total = HEADER_BYTES + fields_length + body_length
    if magic != MAGIC or flags or total > MAX_PACKET_BYTES or fields_length > MAX_FIELDS_BYTES:
        raise _refusal(magic, flags, fields_length, total, MAX_PACKET_BYTES)
    return packet_type, fields_length, total


def _refusal(magic: int, flags: int, fields_length: int, total: int, max_packet_bytes: int) -> ProtocolError:
    if magic != MAGIC:
        return ProtocolError(f"not a packet: it begins with byte 0x{magic:02x} instead of 0x{MAGIC:02x}")
    if flags:
        return ProtocolError(f"packet with unknown flags 0x{flags:04x}")
    if total > max_packet_bytes:
        return ProtocolError(f"packet of {total} bytes where at most {max_packet_bytes} are accepted")
    return ProtocolError(f"packet with {fields_length} bytes of fields; at most {MAX_FIELDS_BYTES}")


def _decode_fields(data: Buffer) -> tuple[Any, ...]:
    # Each item takes a byte at least: three bytes that claim 65,535 would get as many places, again and again
    # inside of each other, and that before a token is looked at.
    most = min(MAX_FIELDS_ITEMS, len(data))
    try:
        fields = msgpack.unpackb(data, use_list=False, max_array_len=most, max_map_len=most)
    # msgpack raises subclasses of ValueError, and RecursionError or MemoryError for hostile nesting.
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ProtocolError(f"packet fields are no msgpack array: {type(error).__name__} {error}") from None
    if type(fields) is not tuple:
        raise ProtocolError(f"packet fields are a {type(fields).__name__}, not an array")
    return fields


def _new_staging() -> mmap.mmap:
    # Pages of its own, which the system gets back. The allocator kept the buffers of connections that come
    # and go, in pieces that did not serve the next one.
    return mmap.mmap(-1, STAGING_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class PacketParser:
    """Makes packets of received bytes.

    It does no I/O of its own; every carrier with a byte stream drives it alike.

    For each read: `get_buffer()` gives the place to receive into, then every packet of `received(n)` must
    be taken. A parser that raised ProtocolError is of no further use: its connection is to be closed.

    Many packets come with one read, from a staging buffer. It holds nothing between two reads (the
    beginning of a packet is kept aside), so one buffer may serve all parsers of a thread. Bodies are copied
    out of it. A packet above OWN_BUFFER_BYTES gets a buffer of its own, whose size follows the bytes that
    arrived and not those announced, and its body refers to that buffer. Either way nothing else refers to a
    body's bytes once its packet was given out.

    `max_packet_bytes` may be changed between two packets. `memory` is where buffers of their own come from.
    """

    __slots__ = ("_begun", "_memory", "_own", "_own_total", "_staging", "buffered_bytes", "max_packet_bytes")

    def __init__(
        self,
        staging: bytearray | None = None,
        max_packet_bytes: int = MAX_PACKET_BYTES,
        memory: BlockMemory | None = None,
    ) -> None:
        self.max_packet_bytes = max_packet_bytes
        self._memory = BlockMemory(0) if memory is None else memory
        self._staging = memoryview(_new_staging() if staging is None else staging)
        self._begun = b""
        self._own: memoryview | None = None
        self._own_total = 0
        self.buffered_bytes = 0
        """The bytes that have arrived of an incomplete packet; 0 between packets."""

    def close(self) -> None:
        """Let go of all buffers: nothing more is received."""
        self._staging = _NO_BODY
        self._own = None
        self._begun = b""
        self.buffered_bytes = 0

    @property
    def receives_large(self) -> bool:
        """True while a packet with a buffer of its own is incomplete."""
        return self._own is not None

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where the next bytes belong; never empty. Not to be released or kept.

        It is what the loop asks a BufferedProtocol for, whose hint is not needed.
        """
        begun = self.buffered_bytes
        if self._own is None:
            if begun:
                self._staging[:begun] = self._begun
                return self._staging[begun:]
            return self._staging
        if begun == len(self._own):
            # A new buffer and not a resize: the carrier may still hold a view of the old one.
            larger = self._own_buffer(self._own_total, begun)
            larger[:begun] = self._own
            self._own = larger
        return self._own[begun:]

    def received(self, count: int) -> list[Packet]:
        """Take `count` more bytes, and return the packets that they completed, in order.

        The bytes stand in the buffer that was given out last.
        """
        if self._own is not None:
            self.buffered_bytes += count
            return [self._take_own(self._own)] if self.buffered_bytes == self._own_total else []
        packets = []
        end = self.buffered_bytes + count
        staging = self._staging
        start = 0
        while end - start >= HEADER_BYTES:
            magic, packet_type, flags, fields_length, body_length = _unpack_header(staging, start)
            total = HEADER_BYTES + fields_length + body_length
            if magic != MAGIC or flags or total > self.max_packet_bytes or fields_length > MAX_FIELDS_BYTES:
                raise _refusal(magic, flags, fields_length, total, self.max_packet_bytes)
            packet_end = start + total
            if packet_end > end:
                if total > OWN_BUFFER_BYTES:
                    self._begin_own(staging[start:end], total)
                break
            fields_start = start + HEADER_BYTES
            body_start = fields_start + fields_length
            fields = _decode_fields(staging[fields_start:body_start])
            body = memoryview(bytes(staging[body_start:packet_end])) if packet_end > body_start else _NO_BODY
            packets.append(_new_packet((packet_type, fields, body)))
            start = packet_end
        self.buffered_bytes = end - start
        self._begun = bytes(staging[start:end]) if start < end and self._own is None else b""
        return packets

    def _begin_own(self, begun: memoryview, total: int) -> None:
        self._own = self._own_buffer(total, begun.nbytes)
        self._own[: begun.nbytes] = begun
        self._own_total = total

    def _take_own(self, own: memoryview) -> Packet:
        packet = decode_packet(own)
        self._own = None
        self._own_total = self.buffered_bytes = 0
        return packet

    def _own_buffer(self, total: int, filled: int) -> memoryview:
        """A buffer for a packet of `total` bytes of which so many have arrived."""
        if total <= max(WHOLE_BUFFER_BYTES, _GROWTH * filled):
            return self._memory.take(total, 0)
        # Zeroing and then overwriting a bytearray cost three times what receiving did.
        return np.empty(min(total, max(OWN_BUFFER_BYTES, _GROWTH * filled)), dtype=np.uint8).data
