"""The part of an open segment that was read last.

Neighbouring small blocks cost one read together.
"""

from __future__ import annotations

from pulsar_ray.errors import CorruptData
from pulsar_ray.ledger.reader import SegmentReader


class SegmentWindow:
    """Reads bytes of a segment, up to `end_offset` ahead of what is asked for."""

    def __init__(self, reader: SegmentReader, end_offset: int) -> None:
        self._reader = reader
        self._start = 0
        self._bytes = memoryview(b"")
        self._end = end_offset

    @property
    def path(self) -> str:
        """The segment's file, for errors."""
        return str(self._reader.path)

    def read(self, offset: int, length: int, ahead: int = 0) -> memoryview:
        """So many bytes, and if they were not read yet up to `ahead` with them."""
        at = offset - self._start
        if not 0 <= at <= at + length <= len(self._bytes):
            size = max(length, min(ahead, self._end - offset))
            try:
                data = self._reader.read(offset, size)
            except CorruptData:  # of a later block, perhaps
                data = self._reader.read(offset, length)
            self._bytes, self._start, at = memoryview(data), offset, 0
        return self._bytes[at : at + length]
