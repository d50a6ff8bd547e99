"""The metadata of an Arrow IPC message with one record batch.

It tells where each column stands in a payload.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pulsar_ray.format.block import KNOWN_COLUMNS, VALUE_COLUMN
from pulsar_ray.format.checksum import Buffer

_PREFIX = struct.Struct("<Ii")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_I64_PAIR = struct.Struct("<qq")
_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _RECORD_BATCH = 1, 2, 3
_ROWS, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_ALIGNMENT = 8


class MetadataCutOff(ValueError):
    """There is less of a payload than its metadata, or it is damaged."""

    def __init__(self) -> None:
        super().__init__("bad Arrow: IPC metadata is cut off")


class Strings(NamedTuple):
    """Where a column of strings stands: start and end of each buffer."""

    rows: int
    nulls: int
    validity: tuple[int, int]
    offsets: tuple[int, int]
    data: tuple[int, int]


class BatchMessage:
    """A payload that is one plain record batch.

    Only its beginning is needed, down to the batch itself.

    Raises ValueError for anything else: Arrow can compress a body's buffers by itself and would then allocate
    whatever they announce.
    """

    def __init__(self, beginning: Buffer, payload_length: int, columns: int) -> None:
        if not columns & VALUE_COLUMN or columns > KNOWN_COLUMNS:
            raise ValueError("the batch has no column value")
        try:
            continuation, metadata_length = _PREFIX.unpack_from(beginning)
            body = _PREFIX.size + metadata_length
            if continuation != _CONTINUATION or metadata_length < 0 or body > payload_length:
                raise ValueError("bad Arrow: not an IPC message")
            if body > len(beginning):
                raise MetadataCutOff
            metadata = memoryview(beginning)[_PREFIX.size : body].cast("B")
            message = _U32.unpack_from(metadata)[0]
            header_type = _field(metadata, message, 1)
            header = _field(metadata, message, 2)
            body_length = _field(metadata, message, 3)
            if not header_type or metadata[header_type] != _RECORD_BATCH or not header:
                raise ValueError("bad Arrow: not a record batch")
            if (_I64.unpack_from(metadata, body_length)[0] if body_length else 0) != payload_length - body:
                raise ValueError("bad Arrow: the body's length is wrong")
            batch = header + _U32.unpack_from(metadata, header)[0]
            if _field(metadata, batch, _COMPRESSION):
                raise ValueError("bad Arrow: the body is compressed")
        except (struct.error, IndexError):
            raise MetadataCutOff from None
        self._metadata = metadata
        self._batch = batch
        self._body = body
        self._end = payload_length

    def strings(self, column: int) -> Strings:
        """Find a column behind columns that all have the buffers of strings or bytes."""
        try:
            rows, nulls = self._pair(_NODES, column)
            places = [self._pair(_BUFFERS, 3 * column + number) for number in range(3)]
        except (struct.error, IndexError):
            raise MetadataCutOff from None
        validity, offsets, data = [(self._body + at, self._body + at + length) for at, length in places]
        for start, end in (validity, offsets, data):
            if not self._body <= start <= end <= self._end:
                raise ValueError("bad Arrow: a buffer is not within the body")
        return Strings(rows, nulls, validity, offsets, data)

    def _pair(self, vector: int, number: int) -> tuple[int, int]:
        """The two numbers of an item of a vector."""
        metadata = self._metadata
        field = _field(metadata, self._batch, vector)
        at = field + _U32.unpack_from(metadata, field)[0]
        if not field or number >= _U32.unpack_from(metadata, at)[0]:
            raise ValueError("bad Arrow: a column is missing")
        first, second = _I64_PAIR.unpack_from(metadata, at + 4 + 16 * number)
        return first, second


def check_stream(stream: Buffer) -> int | None:
    """Raise ValueError for a stream of anything but one plain record batch.

    Its schema and dictionaries stand before it. Returns where the batch begins if its schema alone does,
    None with dictionaries.

    Arrow can compress a body's buffers by itself and would then allocate whatever they announce.
    """
    view = memoryview(stream).cast("B")
    kinds: list[int] = []
    at = begin = 0
    try:
        while at < len(view):
            continuation, metadata_length = _PREFIX.unpack_from(view, at)
            if continuation != _CONTINUATION or metadata_length < 0:
                raise ValueError("bad Arrow: not an IPC message")
            if not metadata_length:
                break
            begin = at
            body = at + _PREFIX.size + metadata_length
            metadata = view[at + _PREFIX.size : body]
            message = _U32.unpack_from(metadata)[0]
            kind, header, length = (_field(metadata, message, number) for number in (1, 2, 3))
            kinds.append(metadata[kind] if kind else 0)
            batch = header + _U32.unpack_from(metadata, header)[0]
            if kinds[-1] == _DICTIONARY:
                data = _field(metadata, batch, 1)
                batch = data + _U32.unpack_from(metadata, data)[0]
            if kinds[-1] != _SCHEMA and _field(metadata, batch, _COMPRESSION):
                raise ValueError("bad Arrow: the body is compressed")
            at = body + (_I64.unpack_from(metadata, length)[0] if length else 0)
            if at < body:
                raise ValueError("bad Arrow: the body's length is wrong")
    except (struct.error, IndexError):
        raise MetadataCutOff from None
    if at > len(view):
        raise MetadataCutOff
    if kinds[:1] != [_SCHEMA] or kinds[-1:] != [_RECORD_BATCH] or set(kinds[1:-1]) - {_DICTIONARY}:
        raise ValueError("bad Arrow: not a stream of one record batch")
    return begin if len(kinds) == len((_SCHEMA, _RECORD_BATCH)) else None


class BatchTemplate:
    """Makes the metadata of batches that have the columns of a sample.

    The sample is the IPC message of a batch with rows, as Arrow writes it. Bodies that are put together of
    parts can follow the metadata so, without a copy for Arrow to write.
    """

    def __init__(self, sample: bytes) -> None:
        _, metadata_length = _PREFIX.unpack_from(sample)
        self._message = sample[: _PREFIX.size + metadata_length]
        metadata = memoryview(self._message)[_PREFIX.size :]
        message = _U32.unpack_from(metadata)[0]
        header = _field(metadata, message, 2)
        batch = header + _U32.unpack_from(metadata, header)[0]
        self._body_length = _field(metadata, message, 3) + _PREFIX.size
        self._rows = _field(metadata, batch, _ROWS) + _PREFIX.size
        self._nodes, self._buffers = (
            _vector(metadata, _field(metadata, batch, vector)) for vector in (_NODES, _BUFFERS)
        )

    def metadata(self, rows: int, nodes: Sequence[tuple[int, int]], buffer_lengths: Sequence[int]) -> bytes:
        """Make the metadata of a body of so long buffers, each padded as by `padded`.

        `nodes` are the length and count of nulls of each array, a nested one before its children. Raises
        ValueError for other numbers of nodes or buffers than the sample's.
        """
        wanted = self._nodes.items, self._buffers.items
        if (len(nodes), len(buffer_lengths)) != wanted:
            raise ValueError(f"{(len(nodes), len(buffer_lengths))} arrays and buffers instead of {wanted}")
        message = bytearray(self._message)
        for place, node in enumerate(nodes):
            _I64_PAIR.pack_into(message, self._nodes.start + 16 * place, *node)
        at = 0
        for place, length in enumerate(buffer_lengths):
            _I64_PAIR.pack_into(message, self._buffers.start + 16 * place, at, length)
            at += padded(length)
        _I64.pack_into(message, self._rows, rows)
        _I64.pack_into(message, self._body_length, at)
        return bytes(message)


def padded(length: int) -> int:
    """The bytes that a buffer of such a length takes in a body."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT


class _Vector(NamedTuple):
    """Where the items of a flatbuffer vector begin in a message."""

    start: int
    items: int


def _vector(metadata: memoryview, field: int) -> _Vector:
    at = field + _U32.unpack_from(metadata, field)[0]
    return _Vector(at + 4 + _PREFIX.size, _U32.unpack_from(metadata, at)[0])


def _field(metadata: memoryview, table: int, field: int) -> int:
    """Find a field of the flatbuffer table at `table`; 0 if absent."""
    vtable: int = table - _I32.unpack_from(metadata, table)[0]
    slot = 4 + 2 * field
    # Byte by byte: less than what calls cost.
    if vtable < 0 or slot + 2 > metadata[vtable] | metadata[vtable + 1] << 8:
        return 0
    place = metadata[vtable + slot] | metadata[vtable + slot + 1] << 8
    return table + place if place else 0
