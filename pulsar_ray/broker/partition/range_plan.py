"""Cutting a range of a partition's log into slices of segment files.

Readers go to the files themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.position_index import IndexPoint
from pulsar_ray.model.position import Position


class FileSlice(NamedTuple):
    """Whole frames of one segment file."""

    path: str
    ledger_id: int
    segment_index: int
    offset: int
    end_offset: int


def cut_range(
    segments: Sequence[SegmentInfo],
    points: Sequence[IndexPoint],
    first: Position,
    end: Position,
    slice_bytes: int,
) -> list[list[FileSlice]]:
    """Group slices of about `slice_bytes` that together hold a range, in order.

    They hold every frame from `first` to before `end`.
    """
    groups: list[list[FileSlice]] = []
    size = slice_bytes
    for segment in segments:
        last = Position(segment.ledger_id, segment.last_entry_id)
        if last < first or Position(segment.ledger_id, segment.first_entry_id) >= end:
            continue
        for offset, stop in _pieces(segment, points, first, end, slice_bytes):
            if size >= slice_bytes:
                groups.append([])
                size = 0
            piece = FileSlice(str(segment.path), segment.ledger_id, segment.segment_index, offset, stop)
            groups[-1].append(piece)
            size += stop - offset
    return groups


def _pieces(
    segment: SegmentInfo, points: Sequence[IndexPoint], first: Position, end: Position, slice_bytes: int
) -> list[tuple[int, int]]:
    """(offset, end offset) of whole frames of a segment that hold the range."""
    inside = [
        p for p in points if (p.ledger_id, p.segment_index) == (segment.ledger_id, segment.segment_index)
    ]
    start, stop = SEGMENT_HEADER_SIZE, segment.end_offset
    cuts: list[int] = []
    for point in inside:
        position = Position(point.ledger_id, point.entry_id)
        if position <= first:
            start = point.offset
        elif position >= end:
            stop = point.offset
            break
        elif point.offset - (cuts[-1] if cuts else start) >= slice_bytes:
            cuts.append(point.offset)
    bounds = [start, *(cut for cut in cuts if start < cut < stop), stop]
    return [(bounds[i], bounds[i + 1]) for i in range(len(bounds) - 1) if bounds[i] < bounds[i + 1]]
