"""Optional fields of a block, tag-length-value behind its fixed header (ADR 0002).

A field is u16 tag, u32 length, value. Bit 15 of a tag says that a reader which does not know it must refuse
the block; other unknown fields are kept. Tag 0 and zeros fill up to a multiple of 8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgpack

from pulsar_ray.errors import UnsupportedFormatVersion

REQUIRED = 0x8000
TAG_PRODUCER_NAME = 1
TAG_KEY = 2
TAG_ORDERING_KEY = 3
TAG_EVENT_TIME = 4
TAG_DELIVER_AT = 5
TAG_PROPERTIES = 6
TAG_SCHEMA_VERSION = 7
# A reader that ignored one of these would show a part, an unfinished or an unreadable message as a whole one.
TAG_CHUNK = 8 | REQUIRED
TAG_TRANSACTION = 9 | REQUIRED
TAG_ENCRYPTION = 10 | REQUIRED
TAG_DELIVERY_TIMES = 11
# A reader that ignored it would deliver what compaction has removed.
TAG_REMOVED_ROWS = 12 | REQUIRED

_FIELD = struct.Struct("<HI")
_I64 = struct.Struct("<q")
_U64_PAIR = struct.Struct("<QQ")
PADDING = tuple(bytes(n) for n in range(8))


MAX_CHUNKS = 16_384
"""Dispatchers remember the place of each chunk, so there is a limit."""


class ChunkInfo(NamedTuple):
    """The part of a large message that a block carries.

    `total_size` is that message's stored size in bytes.
    """

    uuid: str
    chunk_id: int
    num_chunks: int
    total_size: int


class TransactionId(NamedTuple):
    """The transaction a block belongs to."""

    most_bits: int
    least_bits: int


class EncryptionInfo(NamedTuple):
    """How a payload was encrypted; each key is (name, encrypted data key, metadata)."""

    algorithm: str
    parameter: bytes
    keys: tuple[tuple[str, bytes, dict[str, str]], ...]

    def key_names(self) -> str:
        """Return the names of the keys, for errors."""
        return ", ".join(repr(name) for name, _, _ in self.keys)


class BlockMetadata(NamedTuple):
    """The optional fields of a block.

    On a batch without the column of that name a field holds for every row.

    `deliver_at` and `event_time` are in ms since 1970, `schema_version` is opaque, `unknown` keeps the
    optional fields (tag, value) of newer builds. `delivery_times` has a `deliver_at` of its own for each row
    (delivery_times.py). `removed_rows` has a bit for each row, the first in the lowest, which is set for one
    that compaction has removed (ADR 0128).
    """

    producer_name: str | None = None
    key: str | None = None
    ordering_key: str | None = None
    event_time: int | None = None
    deliver_at: int | None = None
    properties: dict[str, str] | None = None
    schema_version: bytes | None = None
    chunk: ChunkInfo | None = None
    transaction: TransactionId | None = None
    encryption: EncryptionInfo | None = None
    delivery_times: bytes | None = None
    removed_rows: bytes | None = None
    unknown: tuple[tuple[int, bytes], ...] = ()


NO_METADATA = BlockMetadata()


def _checked_properties(properties: Any) -> dict[str, str]:
    if type(properties) is not dict:
        raise ValueError(f"properties are {type(properties).__name__}, not a dict of str")
    for name, value in properties.items():
        if type(name) is not str or type(value) is not str:
            raise ValueError(f"property {name!r} is not a pair of str")
    return properties


def _read_chunk(value: bytes) -> ChunkInfo:
    chunk = ChunkInfo(*msgpack.unpackb(value))
    if type(chunk.uuid) is not str or not all(type(number) is int for number in chunk[1:]):
        raise ValueError("chunk fields have wrong types")
    if not 0 <= chunk.chunk_id < chunk.num_chunks <= MAX_CHUNKS or chunk.total_size < 0:
        raise ValueError("chunk fields are out of range")
    return chunk


def _read_encryption(value: bytes) -> EncryptionInfo:
    algorithm, parameter, keys = msgpack.unpackb(value)
    if type(algorithm) is not str or type(parameter) is not bytes or type(keys) is not list:
        raise ValueError("encryption fields have wrong types")
    read = []
    for name, data_key, properties in keys:
        if type(name) is not str or type(data_key) is not bytes:
            raise ValueError("encryption key has wrong types")
        read.append((name, data_key, _checked_properties(properties)))
    return EncryptionInfo(algorithm, parameter, tuple(read))


def _read_times(value: bytes) -> bytes:
    if not value or len(value) & 7:
        raise ValueError(f"{len(value)} bytes are no times")
    return value


def _field(tag: int, value: bytes) -> bytes:
    return _FIELD.pack(tag, len(value)) + value


def encode_metadata(metadata: BlockMetadata) -> bytes:
    """Encode the fields that are not None, padded to a multiple of 8.

    Raises ValueError for wrong values.
    """
    producer_name, key, ordering_key, event_time, deliver_at, properties = metadata[:6]
    parts: list[bytes] = []
    if producer_name is not None:
        parts.append(_field(TAG_PRODUCER_NAME, producer_name.encode()))
    if key is not None:
        parts.append(_field(TAG_KEY, key.encode()))
    if ordering_key is not None:
        parts.append(_field(TAG_ORDERING_KEY, ordering_key.encode()))
    try:
        if event_time is not None:
            parts.append(_field(TAG_EVENT_TIME, _I64.pack(event_time)))
        if deliver_at is not None:
            parts.append(_field(TAG_DELIVER_AT, _I64.pack(deliver_at)))
    except struct.error as error:
        raise ValueError(f"event_time or deliver_at: {error}") from None
    if properties is not None:
        parts.append(_field(TAG_PROPERTIES, msgpack.packb(_checked_properties(properties))))
    if metadata[6:] != _NO_RARE_FIELDS:
        parts += _rare_fields(metadata)
    fields = b"".join(parts)
    return fields + PADDING[-len(fields) & 7]


@lru_cache(maxsize=256)
def encode_producer_fields(producer_name: str, schema_version: bytes | None = None) -> bytes:
    """Encode a producer's name and version alone, the same for block after block.

    The bytes are those of `encode_metadata`.
    """
    return encode_metadata(BlockMetadata(producer_name=producer_name, schema_version=schema_version))


_NO_RARE_FIELDS = NO_METADATA[6:]


def _rare_fields(metadata: BlockMetadata) -> list[bytes]:
    parts = []
    if metadata.schema_version is not None:
        parts.append(_field(TAG_SCHEMA_VERSION, metadata.schema_version))
    if metadata.chunk is not None:
        parts.append(_field(TAG_CHUNK, msgpack.packb(metadata.chunk)))
    if metadata.transaction is not None:
        parts.append(_field(TAG_TRANSACTION, _U64_PAIR.pack(*metadata.transaction)))
    if metadata.encryption is not None:
        parts.append(_field(TAG_ENCRYPTION, msgpack.packb(metadata.encryption)))
    if metadata.delivery_times is not None:
        parts.append(_field(TAG_DELIVERY_TIMES, metadata.delivery_times))
    if metadata.removed_rows is not None:
        parts.append(_field(TAG_REMOVED_ROWS, metadata.removed_rows))
    parts += (_field(tag, value) for tag, value in metadata.unknown)
    return parts


# How to decode each field, in the order of BlockMetadata's.
_DECODERS: tuple[tuple[int, Callable[[bytes], Any]], ...] = (
    (TAG_PRODUCER_NAME, bytes.decode),
    (TAG_KEY, bytes.decode),
    (TAG_ORDERING_KEY, bytes.decode),
    (TAG_EVENT_TIME, lambda value: _I64.unpack(value)[0]),
    (TAG_DELIVER_AT, lambda value: _I64.unpack(value)[0]),
    (TAG_PROPERTIES, lambda value: _checked_properties(msgpack.unpackb(value))),
    (TAG_SCHEMA_VERSION, bytes),
    (TAG_CHUNK, _read_chunk),
    (TAG_TRANSACTION, lambda value: TransactionId(*_U64_PAIR.unpack(value))),
    (TAG_ENCRYPTION, _read_encryption),
    (TAG_DELIVERY_TIMES, _read_times),
    (TAG_REMOVED_ROWS, bytes),
)
_BY_TAG = {tag: (place, decode) for place, (tag, decode) in enumerate(_DECODERS)}


def decode_metadata(fields: bytes) -> BlockMetadata:
    """Decode what `encode_metadata` made; what it returns is not to be changed.

    Raises ValueError for malformed fields and UnsupportedFormatVersion for an unknown required one.
    """
    # Most blocks only name their producer, as the one before did.
    return _decode_short(fields) if len(fields) <= _SHORT_BYTES else _decode(fields)


_SHORT_BYTES = 64


def _decode(fields: bytes) -> BlockMetadata:
    values: list[Any] = [None] * len(_DECODERS)
    unknown: list[tuple[int, bytes]] = []
    offset = 0
    while len(fields) - offset >= _FIELD.size:
        tag, length = _FIELD.unpack_from(fields, offset)
        if tag == 0:
            break
        start = offset + _FIELD.size
        offset = start + length
        if offset > len(fields):
            raise ValueError(f"field {tag:#x} runs out of the header")
        _read_field(tag, fields[start:offset], values, unknown)
    if len(fields) - offset > 7 or any(fields[offset:]):
        raise ValueError("bytes behind the last field")
    return BlockMetadata._make([*values, tuple(unknown)])


_decode_short = lru_cache(maxsize=256)(_decode)


def _read_field(tag: int, value: bytes, values: list[Any], unknown: list[tuple[int, bytes]]) -> None:
    known = _BY_TAG.get(tag)
    if known is None:
        if tag & REQUIRED:
            raise UnsupportedFormatVersion(f"block needs field {tag:#x}, which this build does not know")
        unknown.append((tag, value))
        return
    place, decode = known
    if values[place] is not None:
        raise ValueError(f"field {tag:#x} stands twice")
    try:
        values[place] = decode(value)
    except (ValueError, TypeError, struct.error) as error:
        raise ValueError(f"field {tag:#x}: {error}") from None
