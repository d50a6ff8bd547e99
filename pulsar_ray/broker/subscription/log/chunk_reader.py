"""Reads from segment files which marked blocks are chunks of larger messages, and of which."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from pulsar_ray.broker.subscription.log.segment_blocks import SegmentEnd, blocks_of
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_groups import StoredChunk
from pulsar_ray.dispatch.blocks.chunk_limits import LOOK_BACK_SEGMENTS
from pulsar_ray.errors import CorruptData, PulsarException
from pulsar_ray.format.block import CHUNK
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader

logger = logging.getLogger(__name__)

Chunks = Mapping[tuple[int, int], StoredChunk]
"""By ledger and entry id."""


class ChunkReader:
    """Reads for one offer; for the reader thread.

    `segments` are all there are. `begun` names the message of each incarnation whose chunks so far are known:
    of any other one the chunks before the first that is read are searched for.
    """

    def __init__(self, segments: Sequence[SegmentEnd], begun: Mapping[int, str]) -> None:
        self._all = segments
        self._begun = dict(begun)

    def read(self, refs: Sequence[BlockRef]) -> Chunks:
        """The chunks among blocks in the order of the log.

        A block whose header cannot be read counts as a message alone: a consumer meets the error. Raises
        SegmentGone if a segment is not there.
        """
        found: dict[tuple[int, int], StoredChunk] = {}
        marked = [ref for ref in refs if ref.is_marked]
        places = {_key(segment): place for place, segment in enumerate(self._all)} if marked else {}
        for segment, blocks in groupby(marked, key=lambda ref: (ref.ledger_id, ref.segment_index)):
            place = places.get(segment)
            if place is None:
                raise SegmentGone(f"segment {segment[1]} of ledger {segment[0]}")
            with SegmentReader(Path(self._all[place].path)) as reader:
                for ref in blocks:
                    chunk = _chunk_of(reader, ref)
                    if chunk is not None:
                        found[ref.ledger_id, ref.first_entry_id] = self._with_those_before(ref, chunk, place)
        return found

    def _with_those_before(self, ref: BlockRef, chunk: StoredChunk, place: int) -> StoredChunk:
        incarnation, info = chunk.incarnation, chunk.info
        is_begun = info.chunk_id == 0 or self._begun.get(incarnation) == info.uuid
        self._begun[incarnation] = info.uuid
        return chunk if is_begun else chunk._replace(before=self._look_back(ref, chunk, place))

    def _look_back(self, ref: BlockRef, chunk: StoredChunk, place: int) -> tuple[BlockRef, ...]:
        """The chunks before one, if all of them are still there."""
        found: dict[int, BlockRef] = {}
        for segment in reversed(self._all[max(0, place - LOOK_BACK_SEGMENTS) : place + 1]):
            try:
                with SegmentReader(Path(segment.path)) as reader:
                    for other in _marked_before(reader, segment, ref):
                        known = _chunk_of(reader, other)
                        if known is not None and known.is_of_the_message_of(chunk):
                            found[known.info.chunk_id] = other
            except (CorruptData, SegmentGone) as error:
                logger.warning("the chunks before entry %d:%d: %s", ref.ledger_id, ref.first_entry_id, error)
                break
            if 0 in found:
                break
        numbers = range(chunk.info.chunk_id)
        return tuple(found[number] for number in numbers) if all(n in found for n in numbers) else ()


def _key(segment: SegmentEnd) -> tuple[int, int]:
    return segment.ledger_id, segment.segment_index


def _marked_before(reader: SegmentReader, segment: SegmentEnd, end: BlockRef) -> Iterator[BlockRef]:
    """Yield the marked blocks of a segment that stand before another one."""
    for offset, frame in reader.frames(SEGMENT_HEADER_SIZE, segment.end_offset):
        if not frame.holds_marked_blocks:
            continue
        for ref in blocks_of(segment.ledger_id, segment.segment_index, offset, frame):
            if (ref.ledger_id, ref.first_entry_id) >= (end.ledger_id, end.first_entry_id):
                return
            yield ref


def _chunk_of(reader: SegmentReader, ref: BlockRef) -> StoredChunk | None:
    if ref.messages > 1:
        return None
    try:
        header = reader.read_block_header(ref.offset, ref.length)
        info = header.metadata().chunk if header.flags & CHUNK else None
    except PulsarException as error:
        place = ref.ledger_id, ref.first_entry_id
        logger.warning("the header of entry %d:%d cannot be read: %s", *place, error)
        return None
    return None if info is None else StoredChunk(header.incarnation, header.entry_seq, info)
