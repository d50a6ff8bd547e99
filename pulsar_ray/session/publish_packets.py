"""Publish packets, whose fields are the same for all of a producer's blocks; receipts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgpack

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.packet import Buffer, Packet, packet_head, total_bytes
from pulsar_ray.session.requests import TYPE_OF, Publish, Receipt

_PUBLISH = TYPE_OF[Publish]
_JOIN_BELOW = 4096
"""Up to here a copy costs less than another buffer on the way."""


class PublishPackets:
    """Encodes the Publish packets of one producer.

    The bytes are those of `encode_request(Publish(...), blocks)`.
    """

    __slots__ = ("_awaited", "_unawaited")

    def __init__(self, producer_id: int) -> None:
        self._awaited: bytes = msgpack.packb(Publish(producer_id, True))
        self._unawaited: bytes = msgpack.packb(Publish(producer_id, False))

    def encode(self, block: Sequence[Buffer], *, waits: bool) -> list[Buffer]:
        """The packet's buffers; a short block is joined with what stands before it.

        Raises ProtocolError as `encode_packet`.
        """
        size = total_bytes(block)
        head = packet_head(_PUBLISH, self._awaited if waits else self._unawaited, size)
        return [b"".join((head, *block))] if size <= _JOIN_BELOW else [head, *block]


RECEIPT = TYPE_OF[Receipt]
_Blocks = Sequence[tuple[int, int, int, int, int]]


def receipts_by_producer(packet: Packet) -> Iterable[tuple[int, _Blocks]]:
    """Sort the rows of a Receipt packet by producer id, in order.

    Raises ProtocolError for a wrong number of fields.
    """
    if len(packet.fields) != 1:
        raise ProtocolError(f"Receipt with {len(packet.fields)} fields")
    blocks: _Blocks = packet.fields[0]
    if len(blocks) == 1:
        return ((blocks[0][0], blocks),)
    rows_of: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for row in blocks:
        rows_of.setdefault(row[0], []).append(row)
    return rows_of.items()
