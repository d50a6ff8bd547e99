"""Segment files this process has open for reading, shared by its consumers."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from weakref import WeakValueDictionary

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.block import parse_block_header
from pulsar_ray.format.block_memory import MIN_BLOCK_BYTES, BlockMemory
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.chunked_payload import ChunkedPayload, verify
from pulsar_ray.format.payload import DecodedBlock, decode_block
from pulsar_ray.ledger.reader import SegmentReader

MAX_OPEN_FILES = 64
_CHUNK_HEADER_BYTES = 512


class _OpenSegment:
    """A file, and its blocks that are in use. A thread reads under the lock."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reader = SegmentReader(Path(path))
        self.lock = threading.Lock()
        self.blocks: WeakValueDictionary[int, DecodedBlock] = WeakValueDictionary()
        self.is_closed = False

    def close(self) -> None:
        """Wait for a thread that reads, and close the file."""
        with self.lock:
            self.is_closed = True
            self.reader.close()


class SegmentFiles:
    """A bounded cache of open segments.

    Consumers of several subscriptions share a block while one of them uses it: it is read, verified and
    decoded once, unless it is a short message, which costs less to read than to share. Consumers of different
    partitions do not wait for each other.
    """

    def __init__(self, limit: int = MAX_OPEN_FILES) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _OpenSegment] = OrderedDict()
        # The last one of them: the one that is read again and again.
        self._newest: _OpenSegment | None = None
        self._limit = limit
        self._memory = BlockMemory()

    def decoded_block(self, path: str, offset: int, length: int) -> DecodedBlock:
        """A delivered block. Raises SegmentGone, and what decoding it raises."""
        while True:
            segment = self._newest
            if segment is None or segment.path != path:
                segment = self._segment(path)
            block = segment.blocks.get(offset)
            if block is not None:  # threads that get a block at once need not wait for each other
                return block
            with segment.lock:
                if segment.is_closed:  # others opened so many files meanwhile
                    continue
                block = segment.blocks.get(offset)
                if block is None:
                    block = decode_block(self._read(segment.reader, offset, length))
                    if block.message_count > 1 or length >= MIN_BLOCK_BYTES:
                        segment.blocks[offset] = block
                return block

    def read_chunk(self, path: str, offset: int, length: int, payload: ChunkedPayload) -> None:
        """Read a chunk straight into the message that it is part of. Raises as `decoded_block`."""
        while True:
            segment = self._segment(path)
            with segment.lock:
                if not segment.is_closed:
                    _read_chunk(segment.reader, offset, length, payload)
                    return

    def stored_bytes(self, path: str, offset: int, length: int) -> bytes:
        """A block as it is stored. Raises SegmentGone, CorruptData for one that is cut off."""
        with SegmentReader(Path(path)) as reader:
            return bytes(reader.read_block(offset, length))

    def has(self, path: str) -> bool:
        """Whether a segment can be read: it is open here, or there."""
        return path in self._open or os.path.exists(path)

    def _segment(self, path: str) -> _OpenSegment:
        closing = None
        with self._lock:
            segment = self._open.get(path)
            if segment is not None:
                self._open.move_to_end(path)
                self._newest = segment
                return segment
            segment = self._newest = self._open[path] = _OpenSegment(path)
            if len(self._open) > self._limit:
                closing = self._open.popitem(last=False)[1]
        if closing is not None:
            closing.close()
        return segment

    def _read(self, reader: SegmentReader, offset: int, length: int) -> Buffer:
        if length < MIN_BLOCK_BYTES:
            return reader.read(offset, length)
        buffer = self._memory.take(length, offset)
        reader.read_into(offset, buffer)
        return buffer

    def close(self) -> None:
        """Close all files and keep no memory."""
        with self._lock:
            closing = list(self._open.values())
            self._open.clear()
            self._newest = None
        for segment in closing:
            segment.close()
        self._memory.close()


def _read_chunk(reader: SegmentReader, offset: int, length: int, payload: ChunkedPayload) -> None:
    path = str(reader.path)
    beginning = reader.read(offset, min(length, _CHUNK_HEADER_BYTES))
    header_length = int.from_bytes(beginning[8:12], "little")
    if len(beginning) < header_length <= length:
        beginning = reader.read(offset, header_length)
    header = parse_block_header(beginning, 0, path)
    if header.total_length != length:
        raise CorruptData(path, offset, "not the block that was delivered")
    room = payload.room_for(header)
    start = offset + header.header_length
    reader.read_into(start, room)
    padding = reader.read(start + len(room), length - header.header_length - len(room))
    verify(beginning, header, room, padding, path)


def can_read(reach: tuple[str, str]) -> bool:
    """Whether this process sees the segments: the value beside them can be read back."""
    path, value = reach
    try:
        with open(path) as file:
            return file.read() == value
    except OSError:
        return False
