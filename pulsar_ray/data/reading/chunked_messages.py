"""Joins the messages in chunks of a range (ADR 0047)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pulsar_ray.broker.subscription.log.chunk_reader import ChunkReader
from pulsar_ray.data.planning.plan import ReadRange, SegmentSlice
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_groups import ChunkGroups, StoredChunk
from pulsar_ray.errors import InvalidMessage
from pulsar_ray.format.block import BlockHeader
from pulsar_ray.format.chunked_payload import ChunkedPayload
from pulsar_ray.format.payload import DecodedBlock
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.model.position import Position

_log = logging.getLogger(__name__)


class ChunkedMessages:
    """Takes a range's chunks in order, and gives a message with its last one.

    Remembers places of chunks, and has the bytes of one message at a time. Chunks that are not in the range
    are searched for in the segments before, if the last one is in the range.
    """

    def __init__(self, read_range: ReadRange) -> None:
        self._topic = read_range.topic
        self._segments = _joined((*read_range.before, *read_range.segments))
        self._groups = ChunkGroups()
        self._incomplete: list[Position] = []

    def take(
        self, segment: SegmentSlice, offset: int, place: Position, header: BlockHeader
    ) -> DecodedBlock | None:
        """The whole message, if this chunk is the last of one; else None.

        Raises CorruptData, SegmentGone, InvalidMessage, CryptoError.
        """
        info = header.metadata().chunk
        if info is None:
            raise InvalidMessage(
                f"block {header.entry_seq} of incarnation {header.incarnation:#x}: a chunk of no message"
            )
        ref = BlockRef(*segment.key, offset, header.total_length, place.entry_id, 1, 1, False, True)
        chunk = StoredChunk(header.incarnation, header.entry_seq, info)
        is_last = info.chunk_id + 1 == info.num_chunks
        if is_last and info.chunk_id and self._groups.begun.get(header.incarnation) != info.uuid:
            (chunk,) = ChunkReader(list(self._segments.values()), {}).read([ref]).values()
        whole = self._groups.take(ref, chunk, 0)
        if whole is None:
            if is_last:
                self._incomplete.append(place)
            return None
        self._groups.acknowledged((ref.ledger_id, ref.first_entry_id))
        self._groups.done.clear()
        return self._read((*whole.chunks, whole))

    def report(self) -> None:
        """Log how many messages were left out for want of chunks."""
        if self._incomplete:
            first = self._incomplete[0]
            _log.warning(
                "%d messages in chunks of %s are left out, the first at %d:%d: other chunks of them are "
                "trimmed, or were never stored",
                len(self._incomplete),
                self._topic,
                *first,
            )

    def _read(self, chunks: Sequence[BlockRef]) -> DecodedBlock:
        payload = ChunkedPayload(sum(ref.length for ref in chunks))
        for key, refs in groupby(chunks, _segment_of):
            path = self._segments[key].path
            with SegmentReader(Path(path)) as reader:
                for ref in refs:
                    payload.add(reader.read_block(ref.offset, ref.length), f"{path} (block at {ref.offset})")
        return payload.decoded()


def _joined(slices: Sequence[SegmentSlice]) -> dict[tuple[int, int], SegmentSlice]:
    """The segments of slices, each up to the end of its last slice."""
    return {each.key: each for each in slices}


def _segment_of(ref: BlockRef) -> tuple[int, int]:
    return ref.ledger_id, ref.segment_index
