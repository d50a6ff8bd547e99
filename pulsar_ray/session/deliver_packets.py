"""Deliver packets, one for each delivery: the bytes are those of `encode_request(Deliver(...), body)`."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.model.row_sets import to_wire
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.packet_encoder import PacketEncoder
from pulsar_ray.session.requests import Deliver, DeliverChunks
from pulsar_ray.session.requests import Grant as WireGrant


class DeliverEncoder:
    """Writes one consumer's grants straight into packets."""

    __slots__ = ("_consumer_id", "_encode", "_encode_chunks", "_epoch")

    def __init__(self, consumer_id: int, epoch: int) -> None:
        self._consumer_id = consumer_id
        self._epoch = epoch
        self._encode = PacketEncoder(Deliver).encode
        self._encode_chunks = PacketEncoder(DeliverChunks).encode

    def encode(self, generation: int, grants: Sequence[Grant], body: Sequence[Buffer] = ()) -> list[Buffer]:
        """The packet's buffers; `body` is there for consumers that cannot read the files."""
        described = [_described(grant) for grant in grants]
        failures = [(grant.number, grant.row_failures) for grant in grants if grant.row_failures]
        suspects = [grant.number for grant in grants if grant.is_suspect]
        fields = (self._consumer_id, self._epoch, generation, described, failures, suspects)
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
        fields = (self._consumer_id, self._epoch, generation, grant.number, index, places)
        return self._encode_chunks(fields, body)


def _described(grant: Grant) -> tuple[int, WireGrant]:
    _, number, block, row_set, redelivery_count, _, _ = grant
    ledger_id, segment_index, offset, length, first_entry_id, entries, messages, *_ = block
    rows = to_wire(row_set)
    return number, (
        ledger_id,
        segment_index,
        offset,
        length,
        first_entry_id,
        entries,
        rows,
        redelivery_count,
        messages,
    )
