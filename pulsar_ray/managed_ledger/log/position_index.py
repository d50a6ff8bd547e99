"""A sparse index of the log: where frames start, and the publish times before them.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from pulsar_ray.model.message_id import Position

POINT_BYTES = 4 * 1024 * 1024
POINT_ENTRIES = 4_000


class IndexPoint(NamedTuple):
    """A frame's start.

    `max_publish_ms` is the running maximum over everything before it in the whole log.

    Clients' clocks differ, so publish times go up and down; the running maximum is sorted, and the first
    message published at or after a time is also where it first reaches that time.
    """

    ledger_id: int
    entry_id: int
    segment_index: int
    offset: int
    max_publish_ms: int


class PositionIndex:
    """One point per 4 MiB or 4,000 entries, and one per segment."""

    def __init__(self, points: list[IndexPoint], max_publish_ms: int) -> None:
        self.points = points
        self.max_publish_ms = max_publish_ms
        last = points[-1] if points else IndexPoint(-1, 0, 0, 0, 0)
        self._segment = (last.ledger_id, last.segment_index)
        self._next_offset = last.offset + POINT_BYTES
        self._next_entry_id = last.entry_id + POINT_ENTRIES

    def add_frame(
        self, ledger_id: int, segment_index: int, offset: int, first_entry_id: int, max_publish_ms: int
    ) -> None:
        """Take note of a frame, in order; `max_publish_ms` is the highest publish time in it."""
        if (
            offset >= self._next_offset
            or first_entry_id >= self._next_entry_id
            or self._segment != (ledger_id, segment_index)
        ):
            self._segment = (ledger_id, segment_index)
            self._next_offset = offset + POINT_BYTES
            self._next_entry_id = first_entry_id + POINT_ENTRIES
            point = IndexPoint(ledger_id, first_entry_id, segment_index, offset, self.max_publish_ms)
            # At recovery a frame may be met that a snapshot has a point for.
            if not self.points or point[:2] > self.points[-1][:2]:
                self.points.append(point)
        self.max_publish_ms = max(self.max_publish_ms, max_publish_ms)

    def floor(self, position: Position) -> IndexPoint | None:
        """The last point at or before a position."""
        index = bisect_right(self.points, (position.ledger_id, position.entry_id + 1)) - 1
        return self.points[index] if index >= 0 else None

    def floor_of_time(self, time_ms: int) -> IndexPoint | None:
        """The last point before which everything was published earlier than that."""
        index = bisect_left(self.points, time_ms, key=lambda point: point.max_publish_ms) - 1
        return self.points[index] if index >= 0 else (self.points[0] if self.points else None)

    def forget_before(self, ledger_id: int) -> None:
        """Drop the points of all ledgers below that one."""
        del self.points[: bisect_left(self.points, (ledger_id,))]
