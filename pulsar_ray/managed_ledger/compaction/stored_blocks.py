"""The blocks of a log that a compaction reads, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
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


class Window(NamedTuple):
    """Some MiB of whole frames of a segment.

    Their messages have the numbers from `first` to below `end`.
    """

    segment: int
    offset: int
    length: int
    first: int
    end: int


class BlockReader:
    """Reads the blocks of segments up to the horizon.

    Those of the log only `behind` a position; each time in the same order, with the same numbers.
    """

    def __init__(self, segments: Sequence[SourceSegment], behind: Position, horizon: Position) -> None:
        self._segments = segments
        self._behind = behind
        self._horizon = horizon

    def read(self, note: Callable[[Window], None] = lambda _: None) -> Iterator[list[StoredBlock]]:
        """Yield all blocks, some MiB at once, each time behind a note of their place.

        Raises CorruptData for a frame that cannot be read, for nobody knows which keys it has, and
        SegmentGone.
        """
        number = 0
        for index, segment in enumerate(self._segments):
            with SegmentReader(Path(segment.path)) as reader:
                for offset, length, blocks in _of_segment(reader, segment, number):
                    first = number
                    if blocks:
                        number = blocks[-1].number + blocks[-1].header.message_count
                    note(Window(index, offset, length, first, number))
                    yield self._wanted(segment, blocks)

    def read_again(self, windows: Iterable[Window]) -> Iterator[list[StoredBlock]]:
        """Yield the blocks of some windows, in their order. Raises as `read` does."""
        for index, group in groupby(windows, lambda window: window.segment):
            segment = self._segments[index]
            with SegmentReader(Path(segment.path)) as reader:
                for window in group:
                    data = memoryview(reader.read(window.offset, window.length))
                    blocks, _, _ = _of_window(data, segment, window.first, window.offset)
                    yield self._wanted(segment, blocks)

    def _wanted(self, segment: SourceSegment, blocks: list[StoredBlock]) -> list[StoredBlock]:
        if is_compacted(segment):
            return blocks
        return [
            block for block in blocks if self._behind < (block.ledger_id, block.entry_id) <= self._horizon
        ]


def is_compacted(segment: SourceSegment) -> bool:
    """Whether a segment is one of an earlier compaction."""
    return segment.segment_index >= COMPACTED_INDEX


def _of_segment(
    reader: SegmentReader, segment: SourceSegment, number: int
) -> Iterator[tuple[int, int, list[StoredBlock]]]:
    """Yield where whole frames begin, how many bytes they are, and their blocks."""
    offset, needed = SEGMENT_HEADER_SIZE, 0
    while offset < segment.end_offset:
        length = min(max(_WINDOW_BYTES, needed), segment.end_offset - offset)
        window = memoryview(reader.read(offset, length))
        blocks, read, needed = _of_window(window, segment, number, offset)
        if not read and length == segment.end_offset - offset:
            raise CorruptData(segment.path, offset, "frame reaches beyond the durable end")
        if blocks:
            number = blocks[-1].number + blocks[-1].header.message_count
        yield offset, read, blocks
        offset += read


def _of_window(
    window: memoryview, segment: SourceSegment, number: int, offset: int
) -> tuple[list[StoredBlock], int, int]:
    """Return the blocks of whole frames, where these end, and what the next frame takes."""
    blocks: list[StoredBlock] = []
    at = needed = 0
    while at < len(window):
        try:
            frame = parse_frame_header(window, at)
            needed = frame.total_length
        except FrameIncomplete as error:
            needed = error.needed
        except FrameInvalid as error:
            raise CorruptData(segment.path, offset + at, str(error)) from None
        if at + needed > len(window):
            break
        blocks += _of_frame(window[at : at + needed], frame, segment, number, offset + at)
        number = blocks[-1].number + blocks[-1].header.message_count
        at += needed
    return blocks, at, needed


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


def first_since(segments: Sequence[SourceSegment], time_ms: int) -> Position | None:
    """The first entry of these segments that was published at or after a time."""
    for blocks in BlockReader(segments, EARLIEST, LATEST).read():
        for block in blocks:
            if block.header.publish_time_ms >= time_ms:
                return Position(block.ledger_id, block.entry_id)
    return None
