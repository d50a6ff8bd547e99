"""Reading segment files with pread: for dispatchers, consumers and Spark tasks.

Files are never mapped: truncation or a bad sector under a mapping is a SIGBUS, and here it is an error with
a path and an offset. Only offsets below a durable end that the partition announced may be read.

A segment that is only in the object store is read from there, through the node's store (ADR 0142). Reading
may then raise RemoteStoreUnavailable, and JournalDamaged for an object that is gone or damaged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from pulsar_ray.errors import CorruptData, PulsarException
from pulsar_ray.format.block import BLOCK_HEADER_SIZE, BlockHeader, parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.frame import (
    MIN_FRAME_HEADER_SIZE,
    FrameHeader,
    FrameIncomplete,
    FrameInvalid,
    parse_frame_header,
)
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader
from pulsar_ray.ledger.offloaded import OffloadedSegment, open_offloaded

_HEADER_BYTES = 512
"""Read for the header of a frame alone: what follows it is payload for long."""
_WINDOW_BYTES = 32 * 1024
_SMALL_FRAME_BYTES = 4096
"""Frames up to here come several to a window."""


class SegmentGone(PulsarException):
    """The segment file is not there: trimmed, unless somebody still holds its entries."""

    fields = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is gone; its entries were trimmed, continue at the first one that remains")
        self.path = path


class FrameAt(NamedTuple):
    """A frame and where it starts in its segment file."""

    offset: int
    header: FrameHeader


class SegmentReader:
    """One segment file open for reading; readable even once it is trimmed, from any thread."""

    def __init__(self, path: Path) -> None:
        """Open a segment file.

        Raises SegmentGone if it is not there, CorruptData if it cannot be opened.
        """
        self.path = path
        self._fd = -1
        self._away: OffloadedSegment | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self._away = open_offloaded(path)
            if self._away is None:
                self._open_again()
        except OSError as error:
            raise CorruptData(str(path), 0, str(error)) from error

    def _open_again(self) -> None:
        """Open the file if it was fetched back since it was found absent."""
        try:
            self._fd = os.open(self.path, os.O_RDONLY)
        except OSError:
            raise SegmentGone(str(self.path)) from None

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        if self._away is not None:
            self._away.close()

    @property
    def is_offloaded(self) -> bool:
        """Whether the bytes are only in the object store."""
        return self._away is not None

    def size(self) -> int:
        return os.fstat(self._fd).st_size if self._away is None else self._away.size

    def header(self) -> SegmentHeader:
        """The segment header; raises CorruptData or UnsupportedFormatVersion."""
        return SegmentHeader.decode(self.read(0, SEGMENT_HEADER_SIZE), str(self.path))

    def read_frames(self, offset: int, end_offset: int, max_bytes: int) -> list[FrameAt]:
        """Read headers of frames from `offset` on, as far as max_bytes goes.

        `offset` is a frame's start; at least one header is read.

        Payloads of large frames are not read. Raises CorruptData if the frame there is not whole before
        end_offset; a later one that is not ends the list.
        """
        stop = min(end_offset, offset + max_bytes)
        frames: list[FrameAt] = []
        try:
            for frame in self.frames(offset, end_offset):
                end = frame.offset + frame.header.total_length
                if end > stop and frames:
                    break
                frames.append(frame)
                if end >= stop:
                    break
        except CorruptData:
            if not frames:
                raise
        return frames

    def frames(self, offset: int, end_offset: int) -> Iterator[FrameAt]:
        """Yield headers of the frames from `offset` on, read one by one.

        `offset` is a frame's start.

        Raises CorruptData at the first that is not whole before end_offset.
        """
        window, start, ahead = b"", offset, _HEADER_BYTES
        needed = MIN_FRAME_HEADER_SIZE
        while offset < end_offset:
            if offset + needed - start > len(window):
                window, start = self._window(offset, needed, max(needed, ahead), end_offset), offset
            try:
                header = parse_frame_header(window, offset - start)
            except FrameIncomplete as error:
                needed = error.needed  # many blocks
                continue
            except FrameInvalid as error:
                raise CorruptData(str(self.path), offset, str(error)) from None
            if offset + header.total_length > end_offset:
                raise CorruptData(str(self.path), offset, "frame reaches beyond the durable end")
            yield FrameAt(offset, header)
            offset += header.total_length
            needed = MIN_FRAME_HEADER_SIZE
            ahead = _WINDOW_BYTES if header.total_length <= _SMALL_FRAME_BYTES else _HEADER_BYTES

    def _window(self, offset: int, needed: int, size: int, end_offset: int) -> bytes:
        """At least the needed bytes from `offset` on, up to `size` of them."""
        if offset + needed <= end_offset:
            window = self._read_up_to(offset, min(size, end_offset - offset))
            if len(window) >= needed:
                return window
        raise CorruptData(str(self.path), offset, "frame header is cut off")

    def read_block_header(self, offset: int, length: int) -> BlockHeader:
        """The header of the block of that offset and length, without its payload."""
        first = self.read(offset, min(length, BLOCK_HEADER_SIZE + 440))
        header_length = int.from_bytes(first[8:12], "little")
        if len(first) < header_length <= length:
            first = self.read(offset, header_length)
        try:
            return parse_block_header(first)
        except CorruptData as error:
            raise CorruptData(str(self.path), offset, error.text) from None

    def read_block(self, offset: int, length: int) -> bytes:
        """The bytes of a block, not verified; raises CorruptData for less."""
        return self.read(offset, length)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly so many bytes; raises CorruptData for less."""
        try:
            data = os.pread(self._fd, length, offset) if self._away is None else b""
        except OSError as error:
            raise CorruptData(str(self.path), offset, str(error)) from error
        if len(data) != length:
            data += self._read_up_to(offset + len(data), length - len(data))
            if len(data) != length:
                raise CorruptData(str(self.path), offset, f"only {len(data)} of {length} bytes are there")
        return data

    def read_into(self, offset: int, buffer: bytearray | memoryview) -> None:
        """Fill a buffer from `offset` on; raises CorruptData if the file ends before."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            try:
                if self._away is None:
                    count = os.preadv(self._fd, [view[done:]], offset + done)
                else:
                    count = self._away.read_into(offset + done, view[done:])
            except FileNotFoundError:
                raise SegmentGone(str(self.path)) from None
            except OSError as error:
                raise CorruptData(str(self.path), offset + done, str(error)) from error
            if count == 0:
                raise CorruptData(str(self.path), offset, f"only {done} of {len(view)} bytes are there")
            done += count

    def _read_up_to(self, offset: int, length: int) -> bytes:
        try:
            if self._away is not None:
                return self._away.read_up_to(offset, length)
            data = os.pread(self._fd, length, offset)
            while 0 < len(data) < length:
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except FileNotFoundError:
            raise SegmentGone(str(self.path)) from None
        except OSError as error:
            raise CorruptData(str(self.path), offset, str(error)) from error
        return data


def frame_blocks(buffer: Buffer, frame: FrameHeader) -> list[BlockHeader]:
    """Read the block headers of a whole frame.

    Raises CorruptData unless they are what the frame announces.
    """
    headers = []
    offset = frame.header_length
    for span in frame.blocks:
        header = parse_block_header(buffer, offset)
        if (header.total_length, header.entries, header.message_count) != span:
            raise CorruptData("", offset, "block is not the one its frame announces")
        headers.append(header)
        offset += span.length
    return headers
