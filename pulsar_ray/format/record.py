"""Records of manifests and cursor logs (ADR 0002).

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

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import msgpack

from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.format.checksum import Buffer, checksum

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
