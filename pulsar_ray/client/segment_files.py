"""Segment files this process has open for reading, shared by its consumers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from pulsar_ray.format.block_memory import MIN_BLOCK_BYTES, BlockMemory
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger.reader import SegmentReader

MAX_OPEN_FILES = 64


class SegmentFiles:
    """A bounded cache of open segments; readers handed out stay usable while they are referenced."""

    def __init__(self, limit: int = MAX_OPEN_FILES) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, SegmentReader] = OrderedDict()
        self._limit = limit
        self._memory = BlockMemory()

    def read_block(self, path: str, offset: int, length: int) -> Buffer:
        """The bytes of a granted block. Raises SegmentGone, CorruptData."""
        with self._lock:
            reader = self._open.get(path)
            if reader is None:
                reader = self._open[path] = SegmentReader(Path(path))
                while len(self._open) > self._limit:
                    self._open.popitem(last=False)[1].close()
            else:
                self._open.move_to_end(path)
            # Read under the lock, so that nobody closes the file meanwhile; it comes from the page cache.
            if length < MIN_BLOCK_BYTES:
                return reader.read_block(offset, length)
            buffer = self._memory.take(length, offset)
            reader.read_into(offset, buffer)
            return buffer

    def close(self) -> None:
        """Close all files and keep no memory."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()
        self._memory.close()
