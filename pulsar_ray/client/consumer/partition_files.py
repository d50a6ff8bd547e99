"""A consumer reads a partition's messages in its files, where this process can."""

from __future__ import annotations

from pathlib import Path

from pulsar_ray.client.received import block_decoder
from pulsar_ray.client.received.block_decoder import SegmentFiles
from pulsar_ray.client.received.receiver_queue import QueuedDelivery
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.managed_ledger.log.trimmed_ledgers import NONE_TRIMMED, last_trimmed_ledger
from pulsar_ray.transport.cluster import AttachReply


class PartitionFiles:
    """Knows the directory that a partition was attached in last, and the segments there."""

    def __init__(self, opened: SegmentFiles) -> None:
        self._opened = opened
        self.are_readable = False
        """Whether this process can read the partition's segments."""
        self._directory = ""
        self._segment = (-1, -1)
        """The segment that was asked for last, and its path."""
        self._path = ""
        self._last_deleted = NONE_TRIMMED
        """The highest ledger that was found deleted."""

    def attached(self, attached: AttachReply) -> bool:
        """Take another attachment; returns whether files that could be read are left for it."""
        could_read, self.are_readable = self.are_readable, block_decoder.can_read(attached.reach)
        former, self._directory = self._directory, attached.directory
        self._segment = (-1, -1)
        return bool(could_read and former and (former != attached.directory or not self.are_readable))

    def path(self, ledger_id: int, segment_index: int) -> str:
        """The path of a segment."""
        if (ledger_id, segment_index) != self._segment:
            self._segment = (ledger_id, segment_index)
            self._path = f"{self._directory}/{segment_name(ledger_id, segment_index)}"
        return self._path

    def was_left(self, path: str) -> bool:
        """Whether a segment was in a directory that the partition is not in any more."""
        return str(Path(path).parent) != self._directory

    def loaded(self, delivery: QueuedDelivery) -> QueuedDelivery:
        """A delivery with its bytes in memory. Raises what reading them raises."""
        read = self._opened.stored_bytes
        chunks = [
            chunk._replace(data=memoryview(read(chunk.path, chunk.offset, chunk.length)))
            for chunk in delivery.chunks
        ]
        data = memoryview(read(delivery.path, delivery.offset, delivery.length))
        return delivery._replace(data=data, chunks=chunks or ())

    def was_deleted(self, delivery: QueuedDelivery) -> bool:
        """Whether the partition has deleted what is missing of a delivery."""
        if not delivery.length:
            return True  # the dispatcher has found out
        if not self.are_readable:
            return False
        first = delivery.chunks[0].ledger_id if delivery.chunks else delivery.ledger_id
        if first > self._last_deleted:
            self._last_deleted = last_trimmed_ledger(Path(delivery.path).parent)
        return first <= self._last_deleted

    def is_deleted(self, delivery: QueuedDelivery) -> bool:
        """Whether the ledger of a delivery was deleted while it waited; looks for its file."""
        is_here = delivery.length and (delivery.data is not None or self._opened.has(delivery.path))
        return not is_here and self.was_deleted(delivery)
