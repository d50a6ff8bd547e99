"""Decoding of delivered blocks into received ones."""

from __future__ import annotations

from pulsar_ray.client.options.schema import Schema
from pulsar_ray.client.received.queued_delivery import QueuedChunk, QueuedDelivery
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.received.segment_files import SegmentFiles
from pulsar_ray.errors import CorruptData
from pulsar_ray.format.chunked_payload import ChunkedPayload
from pulsar_ray.format.payload import DecodedBlock, decode_block
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.transport.cluster import PartitionRoute

KEEP_DECODED = 2
UNSTORED = -1
"""Ledger and entry id of every message of a non-persistent topic."""


class BlockDecoder:
    """Decodes the blocks of one partition, once each if their parts come close together."""

    def __init__(self, files: SegmentFiles, route: PartitionRoute, schema: Schema) -> None:
        self._files = files
        self._route = route
        self._schema = schema
        self._decoded: list[tuple[tuple[int, int], ReceivedBlock]] = []

    def decode(self, delivery: QueuedDelivery) -> ReceivedBlock:
        """Read, verify and decode a delivered block. Raises CorruptData, SegmentGone, InvalidMessage."""
        if not delivery.length:
            raise SegmentGone(delivery.path)
        key = delivery.ledger_id, delivery.first_entry_id
        for known, block in self._decoded:
            if (
                known == key
                and block.redelivery_count == delivery.redelivery_count
                and block.row_failures == delivery.row_failures
            ):
                return block
        try:
            if delivery.chunks:
                decoded = self._chunked(delivery)
            elif delivery.data is None:
                decoded = self._files.decoded_block(delivery.path, delivery.offset, delivery.length)
            else:
                decoded = decode_block(delivery.data)
        except CorruptData as error:
            raise CorruptData(delivery.path or self._route.topic, delivery.offset, error.text) from None
        block = ReceivedBlock(
            decoded,
            topic_name=self._route.topic,
            partition=self._route.partition,
            ledger_id=delivery.ledger_id,
            first_entry_id=delivery.first_entry_id,
            redelivery_count=delivery.redelivery_count,
            row_failures=delivery.row_failures,
            schema=self._schema,
        )
        if delivery.chunks:
            block.first_chunk = delivery.chunks[0].ledger_id, delivery.chunks[0].entry_id
        if block.message_count > 1:
            self._decoded = [(key, block), *self._decoded[: KEEP_DECODED - 1]]
        return block

    def _chunked(self, delivery: QueuedDelivery) -> DecodedBlock:
        """Put a message together that came in several chunks."""
        chunks = [*delivery.chunks, _own_place(delivery)]
        payload = ChunkedPayload(sum(chunk.length for chunk in chunks))
        for chunk in chunks:
            if chunk.data is None:
                self._files.read_chunk(chunk.path, chunk.offset, chunk.length, payload)
            else:
                payload.add(chunk.data, chunk.path)
        return payload.decoded()

    def stored_bytes(self, delivery: QueuedDelivery) -> bytes:
        """A block as it is stored, and the chunks before it, undecoded. Raises SegmentGone, CorruptData."""
        parts = [
            data if data is not None else self._files.stored_bytes(path, offset, length)
            for _ledger_id, _entry_id, path, offset, length, data in (*delivery.chunks, _own_place(delivery))
        ]
        return b"".join(parts)

    def decode_unstored(self, delivery: QueuedDelivery) -> ReceivedBlock:
        """Decode a block of a non-persistent topic, whose messages have no place."""
        block = self.decode(delivery)
        block.ledger_id = block.first_entry_id = UNSTORED
        return block


def _own_place(delivery: QueuedDelivery) -> QueuedChunk:
    """The place of the delivered block itself, perhaps the last chunk of its message."""
    return QueuedChunk(*delivery.key, delivery.path, delivery.offset, delivery.length, delivery.data)
