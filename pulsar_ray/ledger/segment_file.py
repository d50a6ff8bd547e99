"""Segment files: their names, what stands in them, and writing them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger.disk import Disk

_NAME = re.compile(r"(\d+)-(\d+)\.seg\Z")


class SegmentInfo(NamedTuple):
    """The part of a segment file that holds durable entries.

    `last_entry_id` is first - 1 while there are none. A log keeps thousands of these, so the path is made
    when it is asked for.
    """

    ledger_id: int
    segment_index: int
    directory: Path
    first_entry_id: int
    end_offset: int
    last_entry_id: int

    @property
    def name(self) -> str:
        return segment_name(self.ledger_id, self.segment_index)

    @property
    def path(self) -> Path:
        return self.directory / self.name


COMPACTED_INDEX = 1 << 31
"""Segments from this index on are compacted: the rest is the compaction's number (ADR 0128)."""
_COMPACTED_NAME = re.compile(r"(\d+)-kept-(\d+)\.seg\Z")


def segment_name(ledger_id: int, segment_index: int) -> str:
    if segment_index >= COMPACTED_INDEX:
        return f"{ledger_id}-kept-{segment_index - COMPACTED_INDEX}.seg"
    return f"{ledger_id}-{segment_index}.seg"


def parse_compacted_name(name: str) -> tuple[int, int] | None:
    """Ledger id and number of a compacted segment's name; None for other names."""
    match = _COMPACTED_NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Ledger id and segment index of the log's segments; None for other names."""
    match = _NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None


MAX_BUFFERS_PER_WRITE = 1024  # IOV_MAX
FILLED_APPEND_BYTES = 32 * 1024
"""Write zeros ahead of appends up to this size.

Longer appends gain too little by them.
"""
MIN_FILL_BYTES = 16 * 1024
MAX_FILL_BYTES = 256 * 1024
_ZEROS = bytes(MAX_FILL_BYTES)


class LedgerWriter:
    """The one open segment file of a ledger.

    A failed write or sync is never repeated on the same file: open another segment.

    Small appends go into zeros written before: a sync that changes neither the file's size nor its extents
    needs no journal entry of the file system (ADR 0021). Readers know a segment's end, or find it by the
    first frame that is none; the zeros are at most as long as what stands before them.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._fd = -1
        self._end = 0
        self._filled_to = 0

    def open_segment(self, path: Path) -> None:
        """Create the file of a new segment; raises FileExistsError rather than write into another owner's."""
        self.close()
        self._fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._end = self._filled_to = 0

    def append(self, buffers: Sequence[Buffer], total_bytes: int) -> None:
        """Write all buffers, uncopied; they are durable when it returns."""
        disk, fd = self._disk, self._fd
        written = disk.writev(fd, buffers) if len(buffers) <= MAX_BUFFERS_PER_WRITE else 0
        if written != total_bytes:
            self._write_rest(buffers, written)
        self._end += total_bytes
        if total_bytes <= FILLED_APPEND_BYTES and self._end > self._filled_to and self._end >= MIN_FILL_BYTES:
            self._fill_ahead()
        disk.fdatasync(fd)

    def _fill_ahead(self) -> None:
        """Write zeros behind the end, which the sync that follows makes part of the file."""
        length = min(self._end, MAX_FILL_BYTES)
        # Without room for them appends go on as they can.
        with contextlib.suppress(OSError):
            self._filled_to = self._end + self._disk.pwrite(self._fd, _ZEROS[:length], self._end)

    def _write_rest(self, buffers: Sequence[Buffer], written: int) -> None:
        """Loop over the iovec limit and short writes; `written` bytes are done."""
        index = 0
        while index < len(buffers):
            length = memoryview(buffers[index]).nbytes
            if written >= length:
                written -= length
                index += 1
                continue
            batch = list(buffers[index : index + MAX_BUFFERS_PER_WRITE])
            batch[0] = memoryview(batch[0]).cast("B")[written:]
            written += self._disk.writev(self._fd, batch)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)
