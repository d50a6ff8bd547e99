"""Find the frames of a segment file, and its torn tail or corruption.

Every frame says which entry was durable when it was written. A bad frame at or below the highest such entry
was confirmed to somebody: that is corruption, which is reported and skipped, never cut. A bad frame above
it is the torn tail of a write that nobody was promised: the ledger ends before it, and the file stays as it
is (ADR 0003).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.block import BlockHeader, verify_block
from pulsar_ray.format.frame import (
    FRAME_MAGIC,
    FrameHeader,
    FrameIncomplete,
    FrameInvalid,
    parse_frame_header,
)
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.disk import Disk
from pulsar_ray.ledger.reader import SegmentReader, frame_blocks
from pulsar_ray.ledger.segment_file import SegmentInfo

_WINDOW_BYTES = 4 * 1024 * 1024
_FRAME_ALIGNMENT = 8
_MAGIC_BYTES = FRAME_MAGIC.to_bytes(4, "little")


@dataclass(frozen=True)
class Corruption:
    """Confirmed entries of a ledger that cannot be read."""

    path: str
    offset: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    reason: str


@dataclass(frozen=True)
class ScannedFrame:
    """An intact frame header; `blocks` is empty if the frame's payload is corrupt."""

    offset: int
    header: FrameHeader
    blocks: list[BlockHeader]


class SegmentScan:
    """One pass over a segment file from a frame's start.

    Iterate `frames` to its end for the results.
    """

    def __init__(
        self,
        path: Path,
        ledger_id: int,
        offset: int,
        next_entry_id: int,
        durable_entry_id: int,
        end_offset: int | None = None,
    ) -> None:
        """`durable_entry_id` is the highest entry known durable from elsewhere; -1 for none.

        `end_offset` bounds a closed segment, whose entries are then all at or below durable_entry_id.
        """
        self.path = path
        self.end_offset = offset
        self.next_entry_id = next_entry_id
        self.durable_entry_id = durable_entry_id
        self.corruptions: list[Corruption] = []
        self.unproven_offset = offset
        """Where the frames begin that no later frame or record proves durable."""
        self.is_end_lost = False
        """Whether confirmed entries are missing behind everything that there is."""
        self._ledger_id = ledger_id
        self._limit = end_offset

    def frames(self) -> Iterator[ScannedFrame]:
        """Yield the frames in order; raises UnsupportedFormatVersion, SegmentGone."""
        with SegmentReader(self.path) as reader:
            limit = reader.size() if self._limit is None else min(self._limit, reader.size())
            window = _Window(reader, limit)
            while self.end_offset < limit or self.next_entry_id <= self.durable_entry_id:
                scanned, reason = self._frame_at(window, self.end_offset, self.next_entry_id)
                if scanned is not None and not reason:
                    self._take(scanned)
                    yield scanned
                    continue
                later = self._later_frame(window, scanned)
                proven = max(self.durable_entry_id, later.header.durable_entry_id if later else -1)
                if self.next_entry_id > proven:
                    break
                yield from self._skip_corruption(scanned, later, proven, limit, reason)

    def _take(self, scanned: ScannedFrame) -> None:
        header = scanned.header
        if header.durable_entry_id >= header.first_entry_id - 1:
            self.unproven_offset = scanned.offset
        self.durable_entry_id = max(self.durable_entry_id, header.durable_entry_id)
        self.end_offset = scanned.offset + header.total_length
        self.next_entry_id = header.last_entry_id + 1
        if self.durable_entry_id >= header.last_entry_id:
            self.unproven_offset = self.end_offset

    def _skip_corruption(
        self, scanned: ScannedFrame | None, later: ScannedFrame | None, proven: int, limit: int, reason: str
    ) -> Iterator[ScannedFrame]:
        """Report the confirmed entries that are bad here, and go on behind them."""
        offset, first = self.end_offset, self.next_entry_id
        if scanned is not None:
            # The header is intact, so the entries' places are known; only the payload is lost.
            last = scanned.header.last_entry_id
            self._take(ScannedFrame(scanned.offset, scanned.header, []))
        elif later is not None:
            last = later.header.first_entry_id - 1
            self.end_offset, self.next_entry_id = later.offset, later.header.first_entry_id
        else:
            last = proven
            self.end_offset, self.next_entry_id = limit, proven + 1
            self.is_end_lost = True
        self.corruptions.append(Corruption(str(self.path), offset, self._ledger_id, first, last, reason))
        if scanned is not None:
            yield ScannedFrame(scanned.offset, scanned.header, [])

    def _frame_at(self, window: _Window, offset: int, entry_id: int) -> tuple[ScannedFrame | None, str]:
        """Read the frame at `offset` and what is wrong with its payload.

        Without a valid header the result is None and what is wrong with that.
        """
        header = window.frame_header(offset)
        if isinstance(header, str):
            return None, header
        if header.ledger_id != self._ledger_id or header.first_entry_id != entry_id:
            return None, f"frame holds entry {header.first_entry_id} instead of {entry_id}"
        try:
            view = window.view(offset, header.total_length)
            blocks = frame_blocks(view, header)
            position = header.header_length
            for block in blocks:
                verify_block(view, position, block)
                position += block.total_length
        except CorruptData as error:
            return ScannedFrame(offset, header, []), error.text
        return ScannedFrame(offset, header, blocks), ""

    def _later_frame(self, window: _Window, bad: ScannedFrame | None) -> ScannedFrame | None:
        """The next intact frame header behind a bad frame that continues this ledger."""
        # Behind an intact header we need not look into its payload, which may hold anything.
        offset = self.end_offset + (bad.header.total_length if bad else _FRAME_ALIGNMENT)
        while (found := window.find(_MAGIC_BYTES, offset)) >= 0:
            offset = found + _FRAME_ALIGNMENT
            header = window.frame_header(found)
            if isinstance(header, str) or header.ledger_id != self._ledger_id:
                continue
            if header.first_entry_id > self.next_entry_id:
                return ScannedFrame(found, header, [])
        return None


def find_frame(
    reader: SegmentReader, offset: int, end_offset: int, ledger_id: int, first_entry_id: int
) -> int | None:
    """Find the ledger's next intact frame header behind damage at `offset`, if any.

    Frames that end before `first_entry_id` are passed over.
    """
    window = _Window(reader, min(end_offset, reader.size()))
    while (found := window.find(_MAGIC_BYTES, offset + _FRAME_ALIGNMENT)) >= 0:
        header = window.frame_header(found)
        offset = found
        if isinstance(header, str) or header.ledger_id != ledger_id:
            continue
        if header.last_entry_id >= first_entry_id and found + header.total_length <= end_offset:
            return found
    return None


class _Window:
    """A part of the file in memory that moves along with the scan."""

    def __init__(self, reader: SegmentReader, limit: int) -> None:
        self._reader = reader
        self._limit = limit
        self._start = 0
        self._data = memoryview(b"")

    def view(self, offset: int, length: int) -> memoryview:
        """A part of the file, shorter where the limit cuts it."""
        end = min(offset + length, self._limit)
        if offset < self._start or end > self._start + len(self._data):
            wanted = min(max(length, _WINDOW_BYTES), self._limit - offset)
            self._data = memoryview(self._reader.read(offset, max(wanted, 0)))
            self._start = offset
        return self._data[offset - self._start : max(end - self._start, 0)]

    def frame_header(self, offset: int) -> FrameHeader | str:
        """The frame header there, or why there is none."""
        needed = 0
        while True:
            view = self.view(offset, max(needed, 256))
            try:
                return parse_frame_header(view)
            except FrameInvalid as error:
                return str(error)
            except FrameIncomplete as error:
                if error.needed <= max(needed, 256) or offset + error.needed > self._limit:
                    return "frame header is cut off"
                needed = error.needed

    def find(self, pattern: bytes, offset: int) -> int:
        """The next aligned place of a pattern, -1 if there is none."""
        while offset < self._limit:
            view = self.view(offset, _WINDOW_BYTES)
            data = view.tobytes()
            found = data.find(pattern)
            while found >= 0:
                if (offset + found) % _FRAME_ALIGNMENT == 0:
                    return offset + found
                found = data.find(pattern, found + 1)
            offset += len(view)
        return -1


def make_durable(disk: Disk, path: Path, unproven_offset: int, end_offset: int) -> None:
    """Sync what a scan found, before anybody is told of it.

    The frames that nothing proves durable may stand in the page cache only, marked clean by a sync that
    failed for the former owner and that no later sync would repeat. Writing the same bytes over them makes
    them dirty again.
    """
    fd = disk.open(path, os.O_RDWR)
    try:
        while unproven_offset < end_offset:
            chunk = os.pread(fd, min(_WINDOW_BYTES, end_offset - unproven_offset), unproven_offset)
            if not chunk:
                raise CorruptData(str(path), unproven_offset, "file became shorter while it was recovered")
            unproven_offset += disk.pwrite(fd, chunk, unproven_offset)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    disk.fsync_dir(path.parent)


def sound_end(segment: SegmentInfo) -> int:
    """Return where an open segment's frames end; behind that a write may be under way.

    Raises SegmentGone.
    """
    first = segment.first_entry_id
    scan = SegmentScan(segment.path, segment.ledger_id, SEGMENT_HEADER_SIZE, first, first - 1)
    for _ in scan.frames():
        pass
    return scan.end_offset
