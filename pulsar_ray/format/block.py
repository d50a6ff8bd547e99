"""Block: the bytes one client encoded at once, stored and delivered verbatim (ADR 0002).

    offset  type  field
    0       u16   magic
    2       u8    version
    3       u8    codec: CompressionType of the payload
    4       u16   flags
    6       u8    payload format
    7       u8    columns: which columns an Arrow payload has
    8       u32   header_length, fixed part and fields, a multiple of 8
    12      u32   payload_length as stored
    16      u32   uncompressed_length
    20      u16   message_count
    22      u16   reserved, 0
    24      u64   incarnation of the producer
    32      u64   entry_seq of the (first) entry within the incarnation
    40      i64   first_sequence_id
    48      i64   last_sequence_id
    56      i64   publish_time_ms
    64      u64   checksum of the 64 bytes before and of all that follows up to the block's end
    72      optional fields (metadata.py)
    then the payload and zeros up to a multiple of 8

Little-endian. Magic, version, lengths and checksum keep their places in every version.
"""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

from pulsar_ray.errors import CorruptData, InvalidMessage, MessageTooBig, UnsupportedFormatVersion
from pulsar_ray.format.checksum import Buffer, checksum
from pulsar_ray.format.metadata import (
    NO_METADATA,
    PADDING,
    BlockMetadata,
    decode_metadata,
    encode_metadata,
)

VALUE_COLUMN = 1
KEY_COLUMN = 2
ORDERING_KEY_COLUMN = 4
PROPERTIES_COLUMN = 8
EVENT_TIME_COLUMN = 16
SEQUENCE_ID_COLUMN = 32
COLUMNAR = 64
"""No column: the values are rows of columns of their own (columnar.py)."""
KNOWN_COLUMNS = 127


BLOCK_MAGIC = 0x4B42  # "BK"
BLOCK_VERSION = 1
BLOCK_HEADER_SIZE = 72
MAX_ROWS = 8192
MAX_MESSAGE_SIZE = 5_242_880
MAX_BLOCK_SIZE = 5_253_120

ROW_IS_ENTRY = 1
NULL_VALUE = 2
DELAYED = 4
CHUNK = 8
ENCRYPTED = 16
MARKED = DELAYED | CHUNK
"""Flags that dispatchers have to know of: frames with such blocks say so."""
_KNOWN_FLAGS = 31

RAW = 0
ARROW = 1

_BYTES_PER_ROW = 4
_FIXED = struct.Struct("<HBBHBBIIIHHQQqqqQ")
_UNSEALED = struct.Struct("<HBBHBBIIIHHQQqqq")
_CHECKSUM = struct.Struct("<Q")
_CHECKSUM_AT = 64
# Up to here one joined buffer costs less than three in every writev on the way, or two in a checksum.
_JOIN_BELOW = 4096


class BlockHeader:
    """A parsed block header: plain attributes, optional fields parsed when `metadata()` is called."""

    __slots__ = (
        "_fields",
        "checksum",
        "codec",
        "columns",
        "entries",
        "entry_seq",
        "first_sequence_id",
        "flags",
        "header_length",
        "incarnation",
        "last_sequence_id",
        "message_count",
        "payload_format",
        "payload_length",
        "publish_time_ms",
        "total_length",
        "uncompressed_length",
    )

    _fields: bytes
    checksum: int
    codec: int
    columns: int
    entries: int
    entry_seq: int
    first_sequence_id: int
    flags: int
    header_length: int
    incarnation: int
    last_sequence_id: int
    message_count: int
    payload_format: int
    payload_length: int
    publish_time_ms: int
    total_length: int
    uncompressed_length: int

    @property
    def row_is_entry(self) -> bool:
        """Whether each row is an entry of its own."""
        return bool(self.flags & ROW_IS_ENTRY)

    @property
    def batch_size(self) -> int:
        """Messages of a batch; 0 for single messages, alone or as rows."""
        return self.message_count if self.payload_format == ARROW and not self.flags & ROW_IS_ENTRY else 0

    def metadata(self) -> BlockMetadata:
        """Parse the optional fields; raises InvalidMessage or UnsupportedFormatVersion."""
        if not self._fields:
            return NO_METADATA
        try:
            return decode_metadata(self._fields)
        except ValueError as error:
            raise InvalidMessage(
                f"block {self.entry_seq} of incarnation {self.incarnation:#x}: {error}"
            ) from None

    def __repr__(self) -> str:
        return (
            f"BlockHeader(incarnation={self.incarnation:#x}, entry_seq={self.entry_seq}, flags={self.flags}, "
            f"messages={self.message_count}, entries={self.entries}, total_length={self.total_length})"
        )


def parse_block_header(buf: Buffer, offset: int = 0, path: str = "block") -> BlockHeader:
    """Parse the header at `offset`, without verifying checksums.

    The payload need not be in the buffer.

    Raises CorruptData if the bytes are no block header, UnsupportedFormatVersion for one of another version.
    """
    header = BlockHeader.__new__(BlockHeader)
    try:
        (
            magic,
            version,
            header.codec,
            flags,
            header.payload_format,
            header.columns,
            header_length,
            payload_length,
            header.uncompressed_length,
            message_count,
            reserved,
            header.incarnation,
            header.entry_seq,
            header.first_sequence_id,
            header.last_sequence_id,
            header.publish_time_ms,
            header.checksum,
        ) = _FIXED.unpack_from(buf, offset)
    except struct.error:
        raise CorruptData(path, offset, "block header is cut off") from None
    if (
        magic != BLOCK_MAGIC
        or version != BLOCK_VERSION
        or header_length & 7
        or header_length < BLOCK_HEADER_SIZE
        or not 0 < message_count <= MAX_ROWS
        or flags > _KNOWN_FLAGS
        or reserved
    ):
        _refuse(buf, offset, path)
    header.flags = flags
    header.header_length = header_length
    header.payload_length = payload_length
    header.total_length = (header_length + payload_length + 7) & ~7
    header.message_count = message_count
    header.entries = message_count if flags & ROW_IS_ENTRY else 1
    if header_length == BLOCK_HEADER_SIZE:
        header._fields = b""
    else:
        header._fields = bytes(buf[offset + BLOCK_HEADER_SIZE : offset + header_length])
        if len(header._fields) != header_length - BLOCK_HEADER_SIZE:
            raise CorruptData(path, offset, "block header is cut off")
    return header


def _refuse(buf: Buffer, offset: int, path: str) -> None:
    fixed = _FIXED.unpack_from(buf, offset)
    magic, version, flags, header_length, payload_length = fixed[0], fixed[1], fixed[3], fixed[6], fixed[7]
    if magic != BLOCK_MAGIC or header_length & 7 or header_length < BLOCK_HEADER_SIZE:
        raise CorruptData(path, offset, "not a block header")
    if version != BLOCK_VERSION or flags > _KNOWN_FLAGS:
        # Only an intact block can be a newer build's; a flipped bit is damage.
        verify_bytes(buf, offset, (header_length + payload_length + 7) & ~7, fixed[-1], path)
        raise UnsupportedFormatVersion(
            f"block of format version {version} with flags {flags:#x}; "
            f"this build reads version {BLOCK_VERSION} with {_KNOWN_FLAGS:#x}"
        )
    raise CorruptData(path, offset, "block header contradicts itself")


def parse_blocks(buf: Buffer, path: str = "block") -> list[BlockHeader]:
    """Parse the headers of all blocks that fill the buffer.

    Raises as `parse_block_header`, also for a block that is cut off.
    """
    headers = []
    offset = 0
    while offset < len(buf):
        header = parse_block_header(buf, offset, path)
        headers.append(header)
        offset += header.total_length
    if offset != len(buf):
        raise CorruptData(path, offset, "last block is cut off")
    return headers


def verify_block(buf: Buffer, offset: int, header: BlockHeader, path: str = "block") -> None:
    """Compare the checksum of the whole block at `offset`; raises CorruptData (a ChecksumError)."""
    verify_bytes(buf, offset, header.total_length, header.checksum, path)


def verify_bytes(buf: Buffer, offset: int, total_length: int, expected: int, path: str) -> None:
    """Verify a block of so many bytes that has this checksum."""
    end = offset + total_length
    if end > len(buf):
        raise CorruptData(path, offset, f"block is cut off {end - len(buf)} bytes before its end")
    if total_length <= _JOIN_BELOW:
        fixed, rest = buf[offset : offset + _CHECKSUM_AT], buf[offset + BLOCK_HEADER_SIZE : end]
        found = xxh3_64_intdigest(b"".join((fixed, rest)))
    else:
        view = memoryview(buf)  # a slice of bytes would copy it
        found = checksum(view[offset : offset + _CHECKSUM_AT], view[offset + BLOCK_HEADER_SIZE : end])
    if found != expected:
        raise CorruptData(path, offset, "checksum of the block does not match")


def encode_block(
    payload: Buffer,
    *,
    incarnation: int,
    entry_seq: int,
    first_sequence_id: int,
    last_sequence_id: int,
    publish_time_ms: int,
    message_count: int = 1,
    payload_format: int = RAW,
    columns: int = 0,
    codec: int = 0,
    uncompressed_length: int | None = None,
    flags: int = 0,
    metadata: BlockMetadata | None = None,
    fields: bytes = b"",
) -> list[Buffer]:
    """Put a header before a payload that is stored as given (compress it before).

    The flags DELAYED, CHUNK and ENCRYPTED follow from the metadata; `fields` are metadata without any of
    that, encoded already. Returns the block's buffers; a payload
    above 4 KiB is among them uncopied. Raises ValueError for a field out of range.
    """
    if not 0 < message_count <= MAX_ROWS:
        raise ValueError(f"message_count is out of range: {message_count} is not in 1..{MAX_ROWS}")
    payload_length = len(payload)
    if metadata is not None:
        fields = encode_metadata(metadata)
        # A dispatcher sees by these, without parsing fields, what a block needs.
        if metadata.deliver_at is not None or metadata.delivery_times is not None:
            flags |= DELAYED
        if metadata.chunk is not None:
            flags |= CHUNK
        if metadata.encryption is not None:
            flags |= ENCRYPTED
    padding = PADDING[-payload_length & 7]
    try:
        fixed = _UNSEALED.pack(
            BLOCK_MAGIC,
            BLOCK_VERSION,
            codec,
            flags,
            payload_format,
            columns,
            BLOCK_HEADER_SIZE + len(fields),
            payload_length,
            payload_length if uncompressed_length is None else uncompressed_length,
            message_count,
            0,
            incarnation,
            entry_seq,
            first_sequence_id,
            last_sequence_id,
            publish_time_ms,
        )
    except struct.error as error:
        raise ValueError(f"block header field out of range: {error}") from None
    if payload_length <= _JOIN_BELOW:
        body = b"".join((fields, payload, padding))
        return [b"".join((fixed, _CHECKSUM.pack(xxh3_64_intdigest(fixed + body)), body))]
    rest = (payload, padding) if padding else (payload,)
    digest = _CHECKSUM.pack(checksum(fixed + fields, *rest))
    return [b"".join((fixed, digest, fields)), *rest]


def check_claim(header: BlockHeader) -> None:
    """Refuse a block that claims more messages than its payload can have; raises InvalidMessage.

    Of each message in a batch Arrow stores where its value ends, in four bytes. Nothing is decoded for this:
    a compressed payload can claim to become as large as it likes.
    """
    rows, length = header.message_count, header.uncompressed_length
    if rows > 1 and header.columns & VALUE_COLUMN and length < _BYTES_PER_ROW * (rows + 1):
        raise InvalidMessage(
            f"a block of {rows} messages says that its payload has {length} bytes uncompressed: "
            f"they take at least {_BYTES_PER_ROW * (rows + 1)}; repair the producer that made it"
        )


def check_block_size(
    payload_length: int,
    total_length: int,
    max_message_size: int = MAX_MESSAGE_SIZE,
    max_block_size: int = MAX_BLOCK_SIZE,
) -> None:
    """Refuse a block whose stored payload or whole length is above the limits; raises MessageTooBig."""
    if payload_length > max_message_size:
        raise MessageTooBig(
            f"payload has {payload_length} bytes, max_message_size is {max_message_size}: "
            "split it, store it elsewhere and send a reference, or raise max_message_size (a setting, and a "
            "policy of namespaces and topics)"
        )
    if total_length > max_block_size:
        raise MessageTooBig(
            f"message with its metadata has {total_length} bytes, netty_max_frame_size_bytes is "
            f"{max_block_size}: shorten properties and keys or raise netty_max_frame_size_bytes"
        )
