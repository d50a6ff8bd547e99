"""Processes of partitions and dispatchers tell their node's store what they have synced.

Both ends of a Unix socket in the data directory send packets, u32 length and msgpack:

    to the store    ["hello", partition, prefix, turn, ends, gone]  all that the sender knows, at first
                    ["tell", turn, is_awaited, ends, gone]          what came since
                    ["forget", partition]                           nothing more of it is shipped; repeated
                                                                    until its directory says so
                    ["offload", number, segments]                   leave these to the object store alone
                    ["fetch back", number, segments]                bring these back
                    ["room", number, used, total, percent, offers]  the disk is too full: which have to go?
    from the store  ["shipped", turn]                               all up to that turn is in the journal
                    ["moved", number, segments, problem]            which are left, are back, have to go

`ends` maps files to their synced lengths, `gone` lists files that nothing lists any more. Names are relative
to the partition's directory. Numbers only grow and may be said again, so a lost connection harms nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack

from pulsar_ray.errors import ProtocolError

SOCKET = "journal.sock"
MOST_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct("<I")


def encode(packet: list[Any]) -> bytes:
    """Return the bytes of one packet."""
    body: bytes = msgpack.packb(packet)
    return _LENGTH.pack(len(body)) + body


class Packets:
    """Cuts the bytes of one connection into packets."""

    def __init__(self) -> None:
        self._received = bytearray()

    def take(self, data: bytes) -> Iterator[list[Any]]:
        """Yield the packets that are whole by now. Raises ProtocolError for bytes that are none."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > MOST_BYTES:
                raise ProtocolError(f"a packet of {length} bytes to the journal")
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            body = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            try:
                packet = msgpack.unpackb(body)
            except ValueError as error:
                raise ProtocolError(f"no packet to the journal: {error}") from None
            if not isinstance(packet, list) or not packet:
                raise ProtocolError(f"no packet to the journal: {packet!r}")
            yield packet
