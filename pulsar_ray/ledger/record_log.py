"""A log of small records in a directory we own.

It holds a snapshot, then changes; each owner starts a file of its own.

Files are named `<name>-<epoch>`. One appears under its name only when its snapshot is whole and durable,
and only then are older ones removed. One thread at a time may use a log.

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
        self._may_have_older = True
        self._reserved = 0
        self._unsynced = 0
        self.size = 0
        self.snapshot_size = 0

    def rewrite(self, snapshot: Sequence[Record]) -> None:
        """Replace the log by a snapshot; durable, and the owner checked, when it returns.

        It begins an owner's log, and mends one whose append failed. When it raises, the log is as it was
        before. Those of former owners go once the first snapshot is durable.
        """
        temporary = self.path.with_name(self.path.name + ".new")
        content = _encode((*snapshot, (SNAPSHOT_END, [self._owner.epoch, len(snapshot)])), 0)
        fd = self._disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self._reserve(fd, len(content))
            write_fully(self._disk, fd, content)
            self._disk.fdatasync(fd)
            self._owner.check()
            self._disk.rename(temporary, self.path)
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
        if self._may_have_older:
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
        """The file, where the owner's directory is now."""
        return self._owner.path / f"{self._name}-{self._owner.epoch}"

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
        # One that cannot be removed does no harm: it is never the newest, and the next owner removes it.
        self._may_have_older = False
        for epoch, path in _log_files(self._owner.path, self._name):
            if epoch < self._owner.epoch:
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

    Raises as `read_log`, and FileNotFoundError if another owner replaces it meanwhile.
    """
    files = _log_files(directory, name)
    if not files:
        return None
    epoch, path = max(files)
    content = path.read_bytes()
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
    return LogContent(path, epoch, records, size, size < len(content)), content


def salvage_log(directory: Path, name: str) -> list[Record]:
    """Read all intact records of the newest log of that name.

    Those behind damage are among them; there are none without a log.

    Raises UnsupportedFormatVersion.
    """
    files = _log_files(directory, name)
    if not files:
        return []
    _, path = max(files)
    return [record for record in intact_records(path.read_bytes(), str(path)) if record[0] != SNAPSHOT_END]


def _encode(records: Iterable[Record], same_write: int) -> bytes:
    group = bytearray()
    for kind, payload in records:
        group += encode_record(kind, payload, same_write + len(group))
    return bytes(group)


def _log_files(directory: Path, name: str) -> list[tuple[int, Path]]:
    pattern = re.compile(re.escape(name) + r"-(\d+)\Z")
    matches = (pattern.match(entry.name) for entry in directory.iterdir())
    return [(int(match[1]), directory / match[0]) for match in matches if match]
