"""Encodes packets whose fields repeat: publishes, deliveries and what followers get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgpack

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.errors import ProtocolError
from pulsar_ray.model.row_ranges import RowFailures
from pulsar_ray.model.row_sets import to_wire
from pulsar_ray.session.packet import Buffer, Packet, packet_head, total_bytes
from pulsar_ray.session.requests import TYPE_OF, Deliver, DeliverChunks, Publish, Receipt
from pulsar_ray.session.requests import Grant as WireGrant

_KEPT_BYTES = 4096


class PacketEncoder:
    """`encode_request` for packets of one type; not for several threads.

    Its packer is kept: making one for every packet took longer than using it.
    """

    __slots__ = ("_pack", "_type")

    def __init__(self, request: type[Any]) -> None:
        self._type = TYPE_OF[request]
        self._pack = msgpack.Packer(buf_size=_KEPT_BYTES).pack

    def encode(self, fields: tuple[Any, ...], body: Sequence[Buffer] = ()) -> list[Buffer]:
        """The packet as buffers to write. Raises ProtocolError when a receiver would not accept it."""
        if not body:
            return [packet_head(self._type, self._pack(fields), 0)]
        return [packet_head(self._type, self._pack(fields), total_bytes(body)), *body]


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


class DeliverEncoder:
    """Writes one consumer's grants straight into packets."""

    __slots__ = ("_consumer_id", "_encode", "_encode_chunks", "_numbering")

    def __init__(self, consumer_id: int, numbering: int) -> None:
        self._consumer_id = consumer_id
        self._numbering = numbering
        self._encode = PacketEncoder(Deliver).encode
        self._encode_chunks = PacketEncoder(DeliverChunks).encode

    def encode(self, generation: int, grants: Sequence[Grant], body: Sequence[Buffer] = ()) -> list[Buffer]:
        """The packet's buffers; `body` is there for consumers that cannot read the files."""
        described: list[tuple[int, WireGrant]] = []
        failures: list[tuple[int, RowFailures]] = []
        suspects: list[int] = []
        for _, number, block, row_set, redelivery_count, is_suspect, row_failures in grants:
            ledger_id, segment_index, offset, length, first_entry_id, entries, messages, *_ = block
            described.append(
                (
                    number,
                    (
                        ledger_id,
                        segment_index,
                        offset,
                        length,
                        first_entry_id,
                        entries,
                        to_wire(row_set),
                        redelivery_count,
                        messages,
                    ),
                )
            )
            if row_failures:
                failures.append((number, row_failures))
            if is_suspect:
                suspects.append(number)
        fields = (self._consumer_id, self._numbering, generation, described, failures, suspects)
        return self._encode(fields, body)

    def encode_chunks(
        self,
        generation: int,
        grant: Grant,
        index: int,
        chunks: Sequence[BlockRef],
        body: Sequence[Buffer] = (),
    ) -> list[Buffer]:
        """The packet of some of a message's chunks, to go before its grant."""
        places = [
            (ref.ledger_id, ref.segment_index, ref.offset, ref.length, ref.first_entry_id) for ref in chunks
        ]
        fields = (self._consumer_id, self._numbering, generation, grant.number, index, places)
        return self._encode_chunks(fields, body)
