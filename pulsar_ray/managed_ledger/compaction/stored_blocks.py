"""The blocks of a log that a compaction reads, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.block import BlockHeader, parse_block_header
from pulsar_ray.format.frame import FrameHeader, FrameIncomplete, FrameInvalid, parse_frame_header
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.segment_file import COMPACTED_INDEX
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position

_WINDOW_BYTES = 4 * 1024 * 1024


class SourceSegment(NamedTuple):
    """A segment to read up to an offset, of the log or compacted before."""

    ledger_id: int
    segment_index: int
    path: str
    end_offset: int


class StoredBlock(NamedTuple):
    """A block, its place, and the number of its first message among all.

    Its frame has a place in the segment's file, and a first message too.
    """

    ledger_id: int
    entry_id: int
    number: int
    header: BlockHeader
    data: memoryview
    frame: FrameHeader
    segment: SourceSegment
    frame_offset: int
    frame_number: int


def stored_blocks(
    segments: Iterable[SourceSegment], behind: Position, horizon: Position
) -> Iterator[list[StoredBlock]]:
    """Yield the blocks up to the horizon, some MiB at once.

    Those of the log only `behind` a position; each time in the same order, with the same numbers. Raises
    CorruptData for a frame that cannot be read, for nobody knows which keys it has, and SegmentGone.
    """
    number = 0
    for segment in segments:
        with SegmentReader(Path(segment.path)) as reader:
            for blocks in _of_segment(reader, segment, number):
                if blocks:
                    number = blocks[-1].number + blocks[-1].header.message_count
                yield [
                    block
                    for block in blocks
                    if behind < (block.ledger_id, block.entry_id) <= horizon or is_compacted(segment)
                ]


def is_compacted(segment: SourceSegment) -> bool:
    """Whether a segment is one of an earlier compaction."""
    return segment.segment_index >= COMPACTED_INDEX


def _of_segment(reader: SegmentReader, segment: SourceSegment, number: int) -> Iterator[list[StoredBlock]]:
    offset, needed = SEGMENT_HEADER_SIZE, 0
    while offset < segment.end_offset:
        length = min(max(_WINDOW_BYTES, needed), segment.end_offset - offset)
        window = memoryview(reader.read(offset, length))
        blocks: list[StoredBlock] = []
        at = 0
        while at < length:
            try:
                frame = parse_frame_header(window, at)
                needed = frame.total_length
            except FrameIncomplete as error:
                needed = error.needed
            except FrameInvalid as error:
                raise CorruptData(segment.path, offset + at, str(error)) from None
            if at + needed > length:
                break
            blocks += _of_frame(window[at : at + needed], frame, segment, number, offset + at)
            number = blocks[-1].number + blocks[-1].header.message_count
            at += needed
        if not at and length == segment.end_offset - offset:
            raise CorruptData(segment.path, offset, "frame reaches beyond the durable end")
        offset += at
        yield blocks


def _of_frame(
    data: memoryview, frame: FrameHeader, segment: SourceSegment, number: int, offset: int
) -> Iterator[StoredBlock]:
    at, entry_id, frame_number, frame_offset = frame.header_length, frame.first_entry_id, number, offset
    for span in frame.blocks:
        try:
            header = parse_block_header(data, at, segment.path)
        except CorruptData as error:
            raise CorruptData(segment.path, offset + at, error.text) from None
        if (header.total_length, header.entries, header.message_count) != span:
            raise CorruptData(segment.path, offset + at, "block is not the one its frame announces")
        yield StoredBlock(
            segment.ledger_id,
            entry_id,
            number,
            header,
            data[at : at + span.length],
            frame,
            segment,
            frame_offset,
            frame_number,
        )
        at += span.length
        entry_id += span.entries
        number += span.messages


def first_since(segments: Iterable[SourceSegment], time_ms: int) -> Position | None:
    """The first entry of these segments that was published at or after a time."""
    for blocks in stored_blocks(segments, EARLIEST, LATEST):
        for block in blocks:
            if block.header.publish_time_ms >= time_ms:
                return Position(block.ledger_id, block.entry_id)
    return None
