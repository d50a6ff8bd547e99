"""A log of small records in a directory we own.

It holds a snapshot, then changes; each owner starts a file of its own.

Files are named `<name>-<epoch>`, and `<name>-<epoch>.<n>` once the same owner has rewritten the log: they are
only appended to, and no name ever comes again (ADR 0134). One appears under its name only when its snapshot
is whole and durable, and only then are older ones removed. One thread at a time may use a log.

A record (ADR 0002):

    offset  type  field
    0       u32   length of the whole record
    4       u8    type, given by the log's owner
    5       u8    version
    6       u16   reserved, 0
    8       u32   same_write: bytes right before this record that were written together with it
    12      payload, msgpack
    last 8  u64   checksum of all before

A log is synced after each write, so everything before `start - same_write` was durable when a record was
written. That tells corruption (a bad record that was durable) from a torn tail (the last write, of which a
power cut may leave any subset of pages).
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgpack

from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.format.checksum import Buffer, checksum
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk, write_fully

RECORD_VERSION = 1

_HEAD = struct.Struct("<IBBHI")
_CHECKSUM = struct.Struct("<Q")
_OVERHEAD = _HEAD.size + _CHECKSUM.size
# Two zero bytes follow the version in every record; the search for records behind a bad one starts there.
_VERSION_AND_RESERVED = struct.pack("<BH", RECORD_VERSION, 0)


def encode_record(record_type: int, payload: Any, same_write: int = 0) -> bytes:
    """Encode one record.

    `same_write` is the number of bytes right before it in the same write.
    """
    body: bytes = msgpack.packb(payload)
    head = _HEAD.pack(len(body) + _OVERHEAD, record_type, RECORD_VERSION, 0, same_write) + body
    return head + _CHECKSUM.pack(checksum(head))


def encode_records(records: Iterable[tuple[int, Any]]) -> bytes:
    """Encode records that are written and synced together."""
    group = bytearray()
    for record_type, payload in records:
        group += encode_record(record_type, payload, len(group))
    return bytes(group)


def read_records(buf: Buffer, path: str = "log") -> Iterator[tuple[int, Any, int]]:
    """Yield (type, payload, end offset) of each record up to a torn tail.

    Raises CorruptData when a bad record was durable before a good one behind it was written, and
    UnsupportedFormatVersion at an intact record of another version.
    """
    view = memoryview(buf).cast("B")
    offset = 0
    while offset < len(view):
        head = _intact_head(view, offset)
        if head is None:
            _refuse_corruption(view, offset, path)
            return
        length, record_type, version, _, _ = head
        if version != RECORD_VERSION:
            raise UnsupportedFormatVersion(
                f"{path}: record of format version {version} at offset {offset}; "
                f"this build reads {RECORD_VERSION}"
            )
        end = offset + length
        try:
            payload = msgpack.unpackb(view[offset + _HEAD.size : end - _CHECKSUM.size], strict_map_key=False)
        except ValueError as error:
            raise CorruptData(path, offset, f"record is not msgpack: {error}") from None
        yield record_type, payload, end
        offset = end


def _intact_head(view: memoryview, offset: int) -> tuple[int, int, int, int, int] | None:
    """Return the head of the record at `offset` if its length and checksum are right."""
    if len(view) - offset < _OVERHEAD:
        return None
    head = _HEAD.unpack_from(view, offset)
    end = offset + head[0]
    if head[0] < _OVERHEAD or end > len(view) or head[3]:
        return None
    if checksum(view[offset : end - 8]) != _CHECKSUM.unpack_from(view, end - 8)[0]:
        return None
    return head


def intact_records(buf: Buffer, path: str = "log") -> Iterator[tuple[int, Any]]:
    """Yield (type, payload) of every intact record, those behind damage too.

    For repairing; raises UnsupportedFormatVersion at an intact record of another version.
    """
    view = memoryview(buf).cast("B")
    offset = 0
    while offset < len(view):
        head = _intact_head(view, offset)
        if head is None:
            offset = next((start for start, _ in _intact_behind(view, offset)), len(view))
            continue
        end = offset + head[0]
        for record_type, payload, _ in read_records(view[offset:end], path):
            yield record_type, payload
        offset = end


def _refuse_corruption(view: memoryview, bad: int, path: str) -> None:
    """Raise CorruptData if a good record behind `bad` was written after `bad` had been durable."""
    for start, head in _intact_behind(view, bad):
        if start - head[4] > bad:
            raise CorruptData(path, bad, f"bad record although an intact one follows at offset {start}")


def _intact_behind(view: memoryview, bad: int) -> Iterator[tuple[int, tuple[int, int, int, int, int]]]:
    """Yield place and head of each seemingly intact record behind a bad one."""
    rest = bytes(view[bad:])
    found = rest.find(_VERSION_AND_RESERVED)
    while found >= 0:
        start = bad + found - 5
        head = _intact_head(view, start) if start > bad else None
        if head is not None:
            yield start, head
        found = rest.find(_VERSION_AND_RESERVED, found + 1)


SNAPSHOT_END = 0  # record type; users' types start at 1
_RESERVE_BYTES = 256 * 1024

Record: TypeAlias = tuple[int, Any]


@dataclass(frozen=True)
class LogContent:
    """The content of a name's newest log: the snapshot's records, then the changes."""

    path: Path
    epoch: int
    records: list[Record]
    size: int
    is_torn: bool


class RecordLog:
    """The owner's log, open for appending."""

    def __init__(self, owner: DirectoryOwner, name: str, disk: Disk = SYSTEM_DISK) -> None:
        self._owner = owner
        self._name = name
        self._disk = disk
        self._fd = -1
        self._is_broken = True
        self._file = f"{name}-{owner.epoch}"
        self._rewrites = 0
        self._reserved = 0
        self._unsynced = 0
        self.size = 0
        self.snapshot_size = 0

    def rewrite(self, snapshot: Sequence[Record]) -> None:
        """Replace the log by a snapshot; durable, and the owner checked, when it returns.

        It begins an owner's log, and mends one whose append failed. When it raises, the log is as it was
        before, or takes nothing more until the next rewrite. Older files go once the snapshot is durable.
        """
        temporary = self._owner.path / f"{self._name}-{self._owner.epoch}.new"
        content = _encode((*snapshot, (SNAPSHOT_END, [self._owner.epoch, len(snapshot)])), 0)
        fd = self._disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self._reserve(fd, len(content))
            write_fully(self._disk, fd, content)
            self._disk.fdatasync(fd)
            self._owner.check()
            name = self._next_name()
            self._disk.rename(temporary, self._owner.path / name)
            # From here on a reader takes the new file, so nothing more may go into the one before.
            self._file, self._is_broken = name, True
            self._rewrites += 1
            self._disk.fsync_dir(self._owner.path)
            self._owner.check()
        except BaseException:
            self._disk.close(fd)
            raise
        self.close()
        self._fd = fd
        self.size = self.snapshot_size = len(content)
        self._unsynced = 0
        self._is_broken = False
        self._remove_older()

    def append(self, records: Iterable[Record], sync: bool = True) -> None:
        """Append records; with `sync` they are durable, and the owner checked, when it returns.

        After an OSError the log takes nothing more until `rewrite`: what a failed write or sync left is
        unknown.
        """
        if self._is_broken:
            raise OSError(f"{self.path} is closed or had a failed write; it must be rewritten first")
        content = _encode(records, self._unsynced)
        try:
            if self.size + len(content) > self._reserved:
                self._reserve(self._fd, self.size + len(content))
            write_fully(self._disk, self._fd, content)
            if sync:
                self._disk.fdatasync(self._fd)
        except OSError:
            self._is_broken = True
            raise
        self.size += len(content)
        self._unsynced = 0 if sync else self._unsynced + len(content)
        if sync:
            self._owner.check()

    def close(self) -> None:
        self._is_broken = True
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    @property
    def path(self) -> Path:
        """The newest file, where the owner's directory is now."""
        return self._owner.path / self._file

    def _next_name(self) -> str:
        """Return a name that no file had before.

        A former rename may count although the disk failed behind it.
        """
        while True:
            suffix = f".{self._rewrites}" if self._rewrites else ""
            name = f"{self._name}-{self._owner.epoch}{suffix}"
            if not (self._owner.path / name).exists():
                return name
            self._rewrites += 1

    @property
    def is_broken(self) -> bool:
        """Whether only `rewrite` can go on."""
        return self._is_broken

    def _reserve(self, fd: int, needed: int) -> None:
        # On a full disk acknowledgements must still be recorded, or nothing would ever be freed again.
        with contextlib.suppress(OSError):
            self._disk.reserve(fd, 0, needed + _RESERVE_BYTES)
            self._reserved = needed + _RESERVE_BYTES

    def _remove_older(self) -> None:
        # One that cannot be removed does no harm: it is never the newest, and the next rewrite removes it.
        older = [path for _, path in _log_files(self._owner.path, self._name)[:-1]]
        # Former owners have left these when they died in a rewrite, or when the disk had no room for one.
        older += self._owner.path.glob(f"{self._name}-*.new")
        for path in older:
            with contextlib.suppress(OSError):
                self._disk.unlink(path)


def read_log(directory: Path, name: str) -> LogContent | None:
    """Read the newest log of that name; None if there is none.

    A torn end (a write nobody was promised) is left out. Raises CorruptData if anything before it is bad.
    """
    found = read_log_bytes(directory, name)
    return None if found is None else found[0]


def read_log_bytes(directory: Path, name: str) -> tuple[LogContent, bytes] | None:
    """Read the newest log of that name and the bytes that it was read from.

    Raises as `read_log`.
    """
    while files := _log_files(directory, name):
        (epoch, _), path = files[-1]
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # its owner has replaced it meanwhile
        return _whole_log(path, epoch, content), content
    return None


def _whole_log(path: Path, epoch: int, content: bytes) -> LogContent:
    records: list[Record] = []
    size, is_whole = 0, False
    for kind, payload, end in read_records(content, str(path)):
        size = end
        if kind == SNAPSHOT_END:
            is_whole = True
        else:
            records.append((kind, payload))
    if not is_whole:
        raise CorruptData(str(path), size, "the snapshot the log starts with is not whole")
    return LogContent(path, epoch, records, size, size < len(content))


def salvage_log(directory: Path, name: str) -> list[Record]:
    """Read all intact records of the newest log of that name.

    Those behind damage are among them; there are none without a log.

    Raises UnsupportedFormatVersion.
    """
    files = _log_files(directory, name)
    if not files:
        return []
    _, path = files[-1]
    return [record for record in intact_records(path.read_bytes(), str(path)) if record[0] != SNAPSHOT_END]


def newest_log(directory: Path, name: str) -> Path | None:
    """Return the newest file of that name, None if there is none or no directory."""
    files = _log_files(directory, name) if directory.is_dir() else []
    return files[-1][1] if files else None


def drop_unfinished(directory: Path, name: str) -> None:
    """Remove files whose snapshot is not whole as long as an older one is there.

    A copy that ends anywhere may have the beginning of one.
    """
    while len(files := _log_files(directory, name)) > 1:
        (epoch, _), path = files[-1]
        try:
            _whole_log(path, epoch, path.read_bytes())
        except CorruptData:
            path.unlink()
        else:
            return


def _encode(records: Iterable[Record], same_write: int) -> bytes:
    group = bytearray()
    for kind, payload in records:
        group += encode_record(kind, payload, same_write + len(group))
    return bytes(group)


def _log_files(directory: Path, name: str) -> list[tuple[tuple[int, int], Path]]:
    """Return the files of a log with epochs and numbers of rewrites, the newest last."""
    pattern = re.compile(re.escape(name) + r"-(\d+)(?:\.(\d+))?\Z")
    matches = (pattern.match(entry.name) for entry in directory.iterdir())
    return sorted(((int(match[1]), int(match[2] or 0)), directory / match[0]) for match in matches if match)
