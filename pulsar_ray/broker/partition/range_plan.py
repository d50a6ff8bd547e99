"""Cutting a range of a partition's log into slices of segment files.

Readers go to the files themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.position_index import IndexPoint
from pulsar_ray.model.message_id import Position


class FileSlice(NamedTuple):
    """Whole frames of one segment file."""

    path: str
    ledger_id: int
    segment_index: int
    offset: int
    end_offset: int


class SliceGroup(NamedTuple):
    """Slices that one reader takes.

    No group before has `first`, and what follows in them.
    """

    first: Position
    slices: list[FileSlice]


def cut_range(
    segments: Sequence[SegmentInfo],
    points: Sequence[IndexPoint],
    first: Position,
    end: Position,
    slice_bytes: int,
) -> list[SliceGroup]:
    """Group slices of about `slice_bytes` that together hold a range, in order.

    They hold every frame from `first` to before `end`.
    """
    groups: list[SliceGroup] = []
    size = slice_bytes
    for segment in segments:
        last = Position(segment.ledger_id, segment.last_entry_id)
        if last < first or Position(segment.ledger_id, segment.first_entry_id) >= end:
            continue
        for offset, stop, start in _pieces(segment, points, first, end, slice_bytes):
            if size >= slice_bytes:
                groups.append(SliceGroup(max(first, start), []))
                size = 0
            piece = FileSlice(str(segment.path), segment.ledger_id, segment.segment_index, offset, stop)
            groups[-1].slices.append(piece)
            size += stop - offset
    return groups


def segments_before(
    segments: Sequence[SegmentInfo], groups: Sequence[SliceGroup], limit: int
) -> list[FileSlice]:
    """Whole segments before the last group's, from `limit` before the first group's on."""
    if not groups:
        return []
    first, last = groups[0].slices[0], groups[-1].slices[-1]
    keys = [(segment.ledger_id, segment.segment_index) for segment in segments]
    start = max(bisect_left(keys, (first.ledger_id, first.segment_index)) - limit, 0)
    stop = bisect_left(keys, (last.ledger_id, last.segment_index))
    return [
        FileSlice(str(each.path), each.ledger_id, each.segment_index, SEGMENT_HEADER_SIZE, each.end_offset)
        for each in segments[start:stop]
    ]


def _pieces(
    segment: SegmentInfo, points: Sequence[IndexPoint], first: Position, end: Position, slice_bytes: int
) -> list[tuple[int, int, Position]]:
    """(offset, end offset, first position) of whole frames of a segment that hold the range."""
    inside = [
        p for p in points if (p.ledger_id, p.segment_index) == (segment.ledger_id, segment.segment_index)
    ]
    start, stop = SEGMENT_HEADER_SIZE, segment.end_offset
    begin = Position(segment.ledger_id, segment.first_entry_id)
    cuts: list[tuple[int, Position]] = []
    for point in inside:
        position = Position(point.ledger_id, point.entry_id)
        if position <= first:
            start, begin = point.offset, position
        elif position >= end:
            stop = point.offset
            break
        elif point.offset - (cuts[-1][0] if cuts else start) >= slice_bytes:
            cuts.append((point.offset, position))
    starts = [(start, begin), *(cut for cut in cuts if start < cut[0] < stop)]
    stops = [*(offset for offset, _ in starts[1:]), stop]
    return [(at, to, position) for (at, position), to in zip(starts, stops, strict=True) if at < to]
