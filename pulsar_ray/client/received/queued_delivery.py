"""What a dispatcher delivered, as it waits in the receiver queue, and how it becomes blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pulsar_ray.client.options.schema import Schema
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.received.segment_files import SegmentFiles
from pulsar_ray.errors import CorruptData
from pulsar_ray.format.payload import decode_block
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.transport.cluster import PartitionRoute

if TYPE_CHECKING:
    from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer

KEEP_DECODED = 2


class QueuedDelivery(NamedTuple):
    """Rows of a block that were delivered and wait in the receiver queue."""

    partition: PartitionConsumer
    generation: int
    ledger_id: int
    path: str
    offset: int
    length: int
    first_entry_id: int
    rows: RowSet
    redelivery_count: int
    data: memoryview | None

    @property
    def key(self) -> tuple[int, int]:
        """The place of the block."""
        return self.ledger_id, self.first_entry_id


class BlockDecoder:
    """Decodes the blocks of one partition, once each if their parts come close together."""

    def __init__(self, files: SegmentFiles, route: PartitionRoute, schema: Schema) -> None:
        self._files = files
        self._route = route
        self._schema = schema
        self._decoded: list[tuple[tuple[int, int], ReceivedBlock]] = []

    def decode(self, granted: QueuedDelivery) -> ReceivedBlock:
        """Read, verify and decode a granted block. Raises CorruptData, SegmentGone, InvalidMessage."""
        if not granted.length:
            raise SegmentGone(granted.path)
        key = granted.ledger_id, granted.first_entry_id
        for known, block in self._decoded:
            if known == key and block.redelivery_count == granted.redelivery_count:
                return block
        try:
            if granted.data is None:
                decoded = self._files.decoded_block(granted.path, granted.offset, granted.length)
            else:
                decoded = decode_block(granted.data)
        except CorruptData as error:
            raise CorruptData(granted.path or self._route.topic, granted.offset, error.text) from None
        block = ReceivedBlock(
            decoded,
            topic_name=self._route.topic,
            partition=self._route.partition,
            ledger_id=granted.ledger_id,
            first_entry_id=granted.first_entry_id,
            redelivery_count=granted.redelivery_count,
            schema=self._schema,
        )
        if block.message_count > 1:
            self._decoded = [(key, block), *self._decoded[: KEEP_DECODED - 1]]
        return block
