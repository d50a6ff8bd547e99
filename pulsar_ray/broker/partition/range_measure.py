"""Measuring how far a bounded number of messages reaches.

Headers of frames tell it; no message is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.broker.partition.range_plan import cut_range
from pulsar_ray.format.frame import BlockSpan
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.position_index import IndexPoint
from pulsar_ray.model.message_id import Position

_ONE_GROUP = 1 << 62


class RangeLimits(NamedTuple):
    """At most so many messages, of at most so many stored bytes."""

    messages: int
    stored_bytes: int
    takes_one: bool
    """The first message is taken however large it is."""


class MeasuredRange(NamedTuple):
    """Where a measured range ends, exclusive, and how much it holds."""

    end: Position
    batch_index: int
    """Rows of the batch at `end` that belong to the range, else 0."""
    messages: int
    stored_bytes: int


def measure_range(
    segments: Sequence[SegmentInfo],
    points: Sequence[IndexPoint],
    first: Position,
    batch_index: int,
    end: Position,
    limits: RangeLimits,
) -> MeasuredRange:
    """Find the longest range between two positions that is within limits.

    `batch_index` rows of the batch at `first` are left out. A message in chunks counts where its last chunk
    is, and its bytes where they are. It touches the disk: run it on a thread. Raises CorruptData,
    SegmentGone.
    """
    messages = size = 0
    for position, span, is_part in _blocks(segments, points, first, end):
        skipped = _rows_before(first, batch_index, position, span)
        rows = _rows_before(end, 0, position, span) - skipped
        if rows <= 0:
            continue
        room = (limits.stored_bytes - size) * span.messages // span.length
        taken = max(0, min(rows, limits.messages - messages, room))
        if not taken and not messages and limits.takes_one:
            taken = 1
        messages += 0 if is_part else taken
        size += span.length * taken // span.messages
        if taken < rows:
            return MeasuredRange(*_place(position, span, skipped + taken), messages, size)
    return MeasuredRange(end, 0, messages, size)


def _blocks(
    segments: Sequence[SegmentInfo], points: Sequence[IndexPoint], first: Position, end: Position
) -> Iterator[tuple[Position, BlockSpan, bool]]:
    """The blocks of a range, and whether each is a chunk but not the last."""
    for group in cut_range(segments, points, first, end, _ONE_GROUP):
        for piece in group.slices:
            with SegmentReader(Path(piece.path)) as reader:
                for frame in reader.frames(piece.offset, piece.end_offset):
                    header = frame.header
                    entry_id, offset = header.first_entry_id, frame.offset + header.header_length
                    for span in header.blocks:
                        is_part = header.holds_marked_blocks and _is_part(reader, offset, span)
                        yield Position(piece.ledger_id, entry_id), span, is_part
                        entry_id += span.entries
                        offset += span.length


def _is_part(reader: SegmentReader, offset: int, span: BlockSpan) -> bool:
    if span.messages > 1:
        return False
    chunk = reader.read_block_header(offset, span.length).metadata().chunk
    return chunk is not None and chunk.chunk_id + 1 < chunk.num_chunks


def _rows_before(bound: Position, batch_index: int, position: Position, span: BlockSpan) -> int:
    """How many rows of the block at `position` lie before a bound."""
    if bound.ledger_id != position.ledger_id:
        return span.messages if position < bound else 0
    ahead = bound.entry_id - position.entry_id
    if span.entries > 1:  # each row is an entry
        return min(max(ahead, 0), span.entries)
    if ahead == 0:
        return min(max(batch_index, 0), span.messages)
    return span.messages if ahead > 0 else 0


def _place(position: Position, span: BlockSpan, row: int) -> tuple[Position, int]:
    if span.entries > 1:
        return Position(position.ledger_id, position.entry_id + row), 0
    return position, row
