"""Measuring a backlog, and finding where a young or small enough rest begins."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.reader import FrameAt, SegmentGone, SegmentReader
from pulsar_ray.ledger.recovery import find_frame
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.position_index import IndexPoint
from pulsar_ray.model.message_id import Position


class BacklogFront(NamedTuple):
    """The first entry of a backlog.

    If there is none, `stored_ms` is None, and `position` stands behind the end. `stored_ms` is when it was
    published, or stored if its producer's clock was ahead of the broker's. `size_bytes` counts from its
    beginning to the end of the log.
    """

    position: Position
    stored_ms: int | None
    size_bytes: int


class BacklogSearch:
    """Goes through frame headers; `run` it on any thread.

    Only what was durable when the search began is read.
    """

    def __init__(
        self,
        start: Position,
        point: IndexPoint | None,
        segments: Sequence[SegmentInfo],
        end: Position,
        points: Sequence[IndexPoint] = (),
    ) -> None:
        """Search from `start` on; `point` is where reading begins, at or before that.

        By `points`, all that there are, segments are looked through that are only in the object store.
        """
        self._points = points
        self._start = start
        self._end = end
        first = (start.ledger_id, 0) if point is None else (point.ledger_id, point.segment_index)
        self._segments = [s for s in segments if (s.ledger_id, s.segment_index) >= first]
        self._offset = SEGMENT_HEADER_SIZE
        if point is not None and self._segments and self._segments[0][:2] == first:
            self._offset = point.offset

    def run(self, stored_before_ms: int = 0, more_than_bytes: int | None = None) -> BacklogFront:
        """Return the first entry that is neither too old, nor has too much behind it.

        Entries that cannot be read are passed.
        """
        rest = sum(segment.end_offset - SEGMENT_HEADER_SIZE for segment in self._segments)
        rest -= self._offset - SEGMENT_HEADER_SIZE
        offset = self._offset
        for segment in self._segments:
            behind = rest - (segment.end_offset - offset)
            try:
                with SegmentReader(segment.path) as reader:
                    if reader.is_offloaded:
                        front = self._by_points(segment, behind, stored_before_ms, more_than_bytes)
                        if front is not None:
                            return front
                        rest, offset = behind, SEGMENT_HEADER_SIZE
                        continue
                    for frame in _sound_frames(reader, segment, offset):
                        front = self._look(reader, segment, frame, behind, stored_before_ms, more_than_bytes)
                        if front is not None:
                            return front
            except (SegmentGone, CorruptData):
                pass
            rest, offset = behind, SEGMENT_HEADER_SIZE
        return BacklogFront(self._end.next(), None, 0)

    def _by_points(
        self, segment: SegmentInfo, behind: int, stored_before_ms: int, more_than_bytes: int | None
    ) -> BacklogFront | None:
        """Return the front if it is in an offloaded segment, by its points.

        It may be too early in the log, by 4 MiB or 4,000 entries at most, so nothing goes too soon.
        """
        here = (segment.ledger_id, segment.segment_index)
        first = bisect_left(self._points, (segment.ledger_id, segment.first_entry_id))
        for index in range(first, len(self._points)):
            point = self._points[index]
            if (point.ledger_id, point.segment_index) != here:
                break
            following = self._points[index + 1] if index + 1 < len(self._points) else None
            is_last = following is None or (following.ledger_id, following.segment_index) != here
            end = Position(segment.ledger_id, segment.last_entry_id + 1)
            stop = end if is_last or following is None else Position(following.ledger_id, following.entry_id)
            newest_ms = None if following is None else following.max_publish_ms
            size = behind + segment.end_offset - point.offset
            is_over = more_than_bytes is not None and size > more_than_bytes
            is_old = newest_ms is not None and newest_ms < stored_before_ms
            if stop <= self._start or is_old or is_over:
                continue
            position = max(self._start, Position(point.ledger_id, point.entry_id))
            stored_ms = max(point.max_publish_ms, stored_before_ms) if newest_ms is None else newest_ms
            return BacklogFront(position, stored_ms, size)
        return None

    def _look(
        self,
        reader: SegmentReader,
        segment: SegmentInfo,
        frame: FrameAt,
        behind: int,
        stored_before_ms: int,
        more_than_bytes: int | None,
    ) -> BacklogFront | None:
        """Return the front if it is in this frame.

        `behind` are the bytes of later segments.
        """
        header = frame.header
        is_old = header.broker_time_ms < stored_before_ms
        if is_old or (segment.ledger_id, header.last_entry_id) < self._start:
            return None
        at, first = frame.offset + header.header_length, header.first_entry_id
        for span in header.blocks:
            skipped = 0
            if segment.ledger_id == self._start.ledger_id:
                skipped = max(self._start.entry_id - first, 0)
            if skipped < span.entries:
                size = behind + segment.end_offset - at
                if more_than_bytes is not None:
                    too_many = size - more_than_bytes
                    skipped = max(skipped, -(-too_many * span.entries // span.length))
                if skipped < span.entries:
                    published_ms = reader.read_block_header(at, span.length).publish_time_ms
                    stored_ms = min(published_ms, header.broker_time_ms)
                    if stored_ms >= stored_before_ms:
                        position = Position(segment.ledger_id, first + skipped)
                        return BacklogFront(position, stored_ms, size - skipped * span.length // span.entries)
            at += span.length
            first += span.entries
        return None


def _sound_frames(reader: SegmentReader, segment: SegmentInfo, offset: int) -> Iterator[FrameAt]:
    """The frames from an offset on, those behind damage too."""
    while True:
        try:
            for frame in reader.frames(offset, segment.end_offset):
                yield frame
                offset = frame.offset + frame.header.total_length
            return
        except CorruptData:
            sound = find_frame(reader, offset, segment.end_offset, segment.ledger_id, 0)
            if sound is None or sound <= offset:
                return
            offset = sound
