"""Writes what a compaction keeps, a segment for each ledger of the log.

Entries have their own numbers there. The files belong to nobody until the partition's manifest names them,
and are removed if it never does. Beside them a file says what they amount to, for a manifest that has lost
the record: that is written last, and removed first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.block import MARKED, BlockHeader
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.frame import HOLDS_MARKED_BLOCKS, FrameHeader, encode_frame_header
from pulsar_ray.format.segment import SegmentHeader
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk, write_fully
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.ledger.record_log import encode_record, read_records
from pulsar_ray.ledger.segment_file import COMPACTED_INDEX, parse_compacted_name, segment_name
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted, from_log, to_log

_WRITE_BYTES = 1024 * 1024
_DESCRIPTION_NAME = re.compile(r"kept-(\d+)\.form\Z")


class KeptSegment(NamedTuple):
    """A segment holds all that is kept of one ledger.

    `last_entry_id` is the last entry that was read of it, `first_kept` and `last_kept` are of the segment.
    """

    ledger_id: int
    last_entry_id: int
    first_kept: int
    last_kept: int
    end_offset: int
    entries: int


class FormWriter:
    """Writes the segments of one compaction, ledger after ledger; `finish` makes them durable."""

    def __init__(
        self,
        directory: Path,
        number: int,
        epoch: int,
        topic: str,
        partition: int,
        created_ms: int,
        disk: Disk = SYSTEM_DISK,
    ) -> None:
        self._directory = directory
        self._index = COMPACTED_INDEX + number
        self._epoch = epoch
        self._topic = topic
        self._partition = partition
        self._created_ms = created_ms
        self._number = number
        self._created: list[Path] = []
        self._disk = disk
        self._fd = -1
        self._ledger_id = -1
        self._first = self._last = -1
        self._end = self._entries = 0
        self._buffers: list[Buffer] = []
        self._buffered = 0
        self._run: list[tuple[int, BlockHeader, Sequence[Buffer]]] = []
        self._frame: FrameHeader | None = None
        self.segments: list[KeptSegment] = []
        self.total_bytes = 0

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        header: BlockHeader,
        buffers: Sequence[Buffer],
        frame: FrameHeader,
        kept_entries: int,
    ) -> None:
        """Take the next block of the log, with so many entries that are kept."""
        if ledger_id != self._ledger_id:
            self._end_segment()
            self._begin_segment(ledger_id)
        if self._run and (
            frame is not self._frame or self._run[-1][0] + self._run[-1][1].entries != entry_id
        ):
            self._end_frame()
        self._frame = frame
        self._run.append((entry_id, header, buffers))
        if self._first < 0:
            self._first = entry_id
        self._last = entry_id + header.entries - 1
        self._entries += kept_entries

    def _end_frame(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        assert self._frame is not None
        spans = [(header.total_length, header.entries, header.message_count) for _, header, _ in run]
        flags = HOLDS_MARKED_BLOCKS if any(header.flags & MARKED for _, header, _ in run) else 0
        first = run[0][0]
        frame = encode_frame_header(
            self._ledger_id, self._epoch, first, first - 1, self._frame.broker_time_ms, spans, flags
        )
        self._put(frame)
        for _, _, buffers in run:
            for buffer in buffers:
                self._put(buffer)
        if self._buffered >= _WRITE_BYTES:
            self._write()

    def _put(self, buffer: Buffer) -> None:
        self._buffers.append(buffer)
        self._buffered += len(buffer)

    def _write(self) -> None:
        if self._buffers:
            write_fully(self._disk, self._fd, b"".join(self._buffers))
            self._end += self._buffered
            self._buffers, self._buffered = [], 0

    def _begin_segment(self, ledger_id: int) -> None:
        path = self._directory / segment_name(ledger_id, self._index)
        self._fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._created.append(path)
        self._ledger_id = ledger_id
        self._first = self._last = -1
        self._end = self._entries = 0
        header = SegmentHeader(
            ledger_id, self._index, self._epoch, self._topic, self._partition, self._created_ms
        )
        self._put(header.encode())

    def _end_segment(self) -> None:
        if self._fd < 0:
            return
        self._end_frame()
        self._write()
        self._disk.fdatasync(self._fd)
        self._close()
        self.segments.append(
            KeptSegment(self._ledger_id, self._last, self._first, self._last, self._end, self._entries)
        )
        self.total_bytes += self._end

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def finish(self) -> None:
        """Make the segments durable; `describe_form` makes their names so."""
        self._end_segment()

    def give_up(self) -> None:
        """Remove what was written here, and nothing of another writer with the same number."""
        self._close()
        if self._created:
            _forget_description(self._directory, self._number, self._disk)
        for path in reversed(self._created):
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)


def describe_form(directory: Path, compacted: Compacted, disk: Disk = SYSTEM_DISK) -> None:
    """Write what a form amounts to beside its segments.

    All of the form is durable when this returns.
    """
    fd = disk.open(_description(directory, compacted.number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_fully(disk, fd, encode_record(*to_log(compacted)))
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    disk.fsync_dir(directory)


def newest_form(directory: Path) -> Compacted | None:
    """Return what the newest form amounts to, of those whose files are all there.

    It is for a manifest that has lost the record. Raises UnsupportedFormatVersion, OSError.
    """
    for number in sorted(numbers_of_forms(directory), reverse=True):
        path = _description(directory, number)
        with contextlib.suppress(FileNotFoundError, CorruptData):
            for kind, fields, _ in read_records(path.read_bytes(), str(path)):
                found = from_log((kind, fields), str(path))
                if isinstance(found, Compacted) and _is_whole(directory, found):
                    return found
    return None


def _description(directory: Path, number: int) -> Path:
    return directory / f"kept-{number}.form"


def _is_whole(directory: Path, compacted: Compacted) -> bool:
    index = COMPACTED_INDEX + compacted.number
    for segment in (KeptSegment(*each) for each in compacted.segments):
        path = directory / segment_name(segment.ledger_id, index)
        if not path.exists() or path.stat().st_size < segment.end_offset:
            return False
    return True


def numbers_of_forms(directory: Path) -> set[int]:
    """The numbers of compactions that have files in a partition's directory."""
    names = os.listdir(directory)
    segments = (parse_compacted_name(name) for name in names)
    described = (_DESCRIPTION_NAME.match(name) for name in names)
    return {parsed[1] for parsed in segments if parsed} | {int(match[1]) for match in described if match}


def remove_leftovers(
    directory: Path, kept: Collection[int], check_owner: Callable[[], None], disk: Disk = SYSTEM_DISK
) -> bool:
    """Remove all forms but those kept; return whether some are still read.

    Raises Fenced where the partition has another owner, and removes nothing then: that may have made forms.
    """
    # In this order: what is found while we own the partition is none of a successor's.
    found = numbers_of_forms(directory)
    check_owner()
    return bool(remove_forms(directory, found.difference(kept), disk))


def remove_forms(directory: Path, numbers: Iterable[int], disk: Disk = SYSTEM_DISK) -> set[int]:
    """Remove the files of compactions that nobody reads.

    A reader keeps a `FormLock`. Returns the numbers of those that have one. The next call does the rest of
    one that was broken off.
    """
    wanted = set(numbers)
    found: dict[int, list[tuple[int, Path]]] = {}
    for name in os.listdir(directory):
        parsed = parse_compacted_name(name)
        if parsed is not None and parsed[1] in wanted:
            found.setdefault(parsed[1], []).append((parsed[0], directory / name))
    used = set()
    for number in wanted - found.keys():
        _forget_description(directory, number, disk)
    for number, files in found.items():
        files.sort()
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(files[0][1], os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The one that readers lock goes last, and first what says that the form is whole.
                _forget_description(directory, number, disk)
                for _, path in reversed(files):
                    disk.unlink(path)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                used.add(number)
            finally:
                os.close(fd)
    return used


def _forget_description(directory: Path, number: int, disk: Disk) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(_description(directory, number))


class FormLock:
    """Keeps the files of a compacted form while somebody reads them.

    The kernel lets go of a dead process's.
    """

    def __init__(self, path: Path) -> None:
        """Lock the first segment of a form. Raises SegmentGone."""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise SegmentGone(str(path)) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_there = os.fstat(self._fd).st_nlink > 0
        except BlockingIOError:
            is_there = False
        if not is_there:
            self.release()
            raise SegmentGone(str(path))

    def release(self) -> None:
        """Let the files go."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.release()
