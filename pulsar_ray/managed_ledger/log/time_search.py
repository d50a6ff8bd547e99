"""Finding the first message published at or after a time."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.position_index import IndexPoint
from pulsar_ray.model.position import Position

_READ_BYTES = 4 * 1024 * 1024


class TimeSearch:
    """`run` it on any thread: it only reads what was durable when it began."""

    def __init__(
        self, time_ms: int, start: IndexPoint | None, segments: Sequence[SegmentInfo], end: Position
    ) -> None:
        self._time_ms = time_ms
        self._start = start
        self._segments = segments
        self._end = end

    def run(self) -> Position:
        """The entry, or the position behind the last one if all are older.

        Unreadable ones are passed.
        """
        start = self._start
        for segment in self._segments:
            offset = SEGMENT_HEADER_SIZE
            if start is not None:
                place = (segment.ledger_id, segment.segment_index)
                if place < (start.ledger_id, start.segment_index):
                    continue
                if place == (start.ledger_id, start.segment_index):
                    offset = start.offset
            try:
                found = self._search(segment, offset)
            except (SegmentGone, CorruptData):
                continue
            if found is not None:
                return found
        return self._end.next()

    def _search(self, segment: SegmentInfo, offset: int) -> Position | None:
        with SegmentReader(segment.path) as reader:
            while offset < segment.end_offset:
                for frame in reader.read_frames(offset, segment.end_offset, _READ_BYTES):
                    at, entry_id = frame.offset + frame.header.header_length, frame.header.first_entry_id
                    for span in frame.header.blocks:
                        if reader.read_block_header(at, span.length).publish_time_ms >= self._time_ms:
                            return Position(segment.ledger_id, entry_id)
                        at += span.length
                        entry_id += span.entries
                    offset = at
        return None
