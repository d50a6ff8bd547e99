"""Frame headers, which place clients' blocks in a ledger (ADR 0002).

A frame is one write of a partition.

    offset  type  field
    0       u32   magic
    4       u8    version
    5       u8    flags: 1 if it holds delayed or chunked blocks (ADR 0035)
    6       u16   reserved, 0
    8       u32   header_length = 72 + 8 * block_count
    12      u32   block_count
    16      i64   ledger_id
    24      u64   epoch of the writer
    32      i64   first_entry_id
    40      i64   durable_entry_id: last durable entry of this ledger when the frame was written, -1 none
    48      i64   broker_time_ms
    56      u64   payload_length: sum of the blocks' lengths
    64      per block: u32 length, u16 entries, u16 messages
    last 8  u64   checksum of all before

Everything is little-endian and a multiple of 8 long; the blocks follow verbatim. `header_length` and the
place of the checksum stay as they are in every version, so that a newer frame is told from a damaged one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from pulsar_ray.errors import UnsupportedFormatVersion
from pulsar_ray.format.checksum import Buffer

FRAME_MAGIC = 0x4D465250  # "PRFM"
FRAME_VERSION = 1
MAX_BLOCKS_PER_FRAME = 1 << 20

HOLDS_MARKED_BLOCKS = 1
"""Some of its blocks are delayed or chunked: their headers say which."""
_KNOWN_FLAGS = 1

_PREFIX = struct.Struct("<IBBHII")
_FIXED = struct.Struct("<IBBHIIqQqqqQ")
_SPAN = struct.Struct("<IHH")
_CHECKSUM = struct.Struct("<Q")
_ONE_UNSEALED = struct.Struct("<IBBHIIqQqqqQIHH")
_ONE = struct.Struct("<IBBHIIqQqqqQIHHQ")

MIN_FRAME_HEADER_SIZE = _ONE.size


class BlockSpan(NamedTuple):
    """One block as its frame describes it; `length` is in bytes.

    The length is a multiple of 8.
    """

    length: int
    entries: int
    messages: int


_block_span: Callable[[tuple[int, int, int]], BlockSpan] = partial(tuple.__new__, BlockSpan)


class FrameIncomplete(Exception):
    """The buffer ends within the frame header; `needed` bytes from its start are wanted."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"frame header needs {needed} bytes")
        self.needed = needed


class FrameInvalid(Exception):
    """The bytes are no frame header of any version.

    They are a torn tail or corruption; the caller can tell which.
    """


class FrameHeader:
    """A parsed frame header; its blocks stand in `blocks`, its entries are first_entry_id..last_entry_id."""

    __slots__ = (
        "block_count",
        "blocks",
        "broker_time_ms",
        "durable_entry_id",
        "entries",
        "epoch",
        "first_entry_id",
        "header_length",
        "holds_marked_blocks",
        "last_entry_id",
        "ledger_id",
        "payload_length",
        "total_length",
    )

    def __init__(
        self,
        ledger_id: int,
        epoch: int,
        first_entry_id: int,
        durable_entry_id: int,
        broker_time_ms: int,
        header_length: int,
        payload_length: int,
        entries: int,
        blocks: tuple[BlockSpan, ...],
        flags: int = 0,
    ) -> None:
        self.ledger_id = ledger_id
        self.epoch = epoch
        self.first_entry_id = first_entry_id
        self.durable_entry_id = durable_entry_id
        self.broker_time_ms = broker_time_ms
        self.header_length = header_length
        self.payload_length = payload_length
        self.entries = entries
        self.blocks = blocks
        self.block_count = len(blocks)
        self.last_entry_id = first_entry_id + entries - 1
        self.total_length = header_length + payload_length
        self.holds_marked_blocks = bool(flags & HOLDS_MARKED_BLOCKS)
        """Whether the headers of its blocks have to be read: some are delayed or chunked."""

    def __repr__(self) -> str:
        return (
            f"FrameHeader(ledger_id={self.ledger_id}, epoch={self.epoch}, "
            f"entries={self.first_entry_id}..{self.last_entry_id}, durable_entry_id={self.durable_entry_id}, "
            f"blocks={self.block_count}, total_length={self.total_length})"
        )


def encode_frame_header(
    ledger_id: int,
    epoch: int,
    first_entry_id: int,
    durable_entry_id: int,
    broker_time_ms: int,
    blocks: Sequence[tuple[int, int, int]],
    flags: int = 0,
) -> bytes:
    """Encode the header of a frame, behind which the blocks' bytes are written.

    `blocks` are BlockSpans, or what one consists of.

    Raises ValueError if there is no block, or one whose length is no multiple of 8, or which has no entry.
    """
    if len(blocks) == 1:
        length, entries, messages = blocks[0]
        if length & 7 or not length or not 0 < entries <= messages:
            raise ValueError(f"{BlockSpan(length, entries, messages)} cannot be framed")
        head = _ONE_UNSEALED.pack(
            FRAME_MAGIC,
            FRAME_VERSION,
            flags,
            0,
            MIN_FRAME_HEADER_SIZE,
            1,
            ledger_id,
            epoch,
            first_entry_id,
            durable_entry_id,
            broker_time_ms,
            length,
            length,
            entries,
            messages,
        )
        return head + _CHECKSUM.pack(xxh3_64_intdigest(head))
    return _encode_many(ledger_id, epoch, first_entry_id, durable_entry_id, broker_time_ms, blocks, flags)


def _encode_many(
    ledger_id: int,
    epoch: int,
    first_entry_id: int,
    durable_entry_id: int,
    broker_time_ms: int,
    blocks: Sequence[tuple[int, int, int]],
    flags: int,
) -> bytes:
    if not 0 < len(blocks) <= MAX_BLOCKS_PER_FRAME:
        raise ValueError(f"a frame holds 1..{MAX_BLOCKS_PER_FRAME} blocks, not {len(blocks)}")
    payload_length = 0
    for length, entries, messages in blocks:
        if length & 7 or not length or not 0 < entries <= messages:
            raise ValueError(f"{BlockSpan(length, entries, messages)} cannot be framed")
        payload_length += length
    head = b"".join(
        (
            _FIXED.pack(
                FRAME_MAGIC,
                FRAME_VERSION,
                flags,
                0,
                72 + 8 * len(blocks),
                len(blocks),
                ledger_id,
                epoch,
                first_entry_id,
                durable_entry_id,
                broker_time_ms,
                payload_length,
            ),
            *(_SPAN.pack(*span) for span in blocks),
        )
    )
    return head + _CHECKSUM.pack(xxh3_64_intdigest(head))


def parse_frame_header(buf: Buffer, offset: int = 0) -> FrameHeader:
    """Parse and verify the frame header at `offset`.

    The blocks behind the header need not be in the buffer.

    Raises FrameIncomplete if the buffer ends too early, FrameInvalid if the bytes are no frame header, and
    UnsupportedFormatVersion if they are an intact one of another version.
    """
    try:
        (
            magic,
            version,
            flags,
            reserved,
            header_length,
            block_count,
            ledger_id,
            epoch,
            first_entry_id,
            durable_entry_id,
            broker_time_ms,
            payload_length,
            length,
            entries,
            messages,
            digest,
        ) = _ONE.unpack_from(buf, offset)
    except struct.error:
        raise FrameIncomplete(MIN_FRAME_HEADER_SIZE) from None
    if block_count != 1 or version != FRAME_VERSION:
        return _parse_many(buf, offset)
    if magic != FRAME_MAGIC or header_length != MIN_FRAME_HEADER_SIZE:
        raise FrameInvalid("not a frame header")
    if xxh3_64_intdigest(buf[offset : offset + MIN_FRAME_HEADER_SIZE - 8]) != digest:
        raise FrameInvalid("checksum of the frame header does not match")
    if (
        flags > _KNOWN_FLAGS
        or reserved
        or length != payload_length
        or length & 7
        or not 0 < entries <= messages
    ):
        raise FrameInvalid("frame header contradicts itself")
    return FrameHeader(
        ledger_id,
        epoch,
        first_entry_id,
        durable_entry_id,
        broker_time_ms,
        header_length,
        payload_length,
        entries,
        (_block_span((length, entries, messages)),),
        flags,
    )


def _parse_many(buf: Buffer, offset: int) -> FrameHeader:
    magic, version, flags, reserved, header_length, block_count = _PREFIX.unpack_from(buf, offset)
    longest = 72 + 8 * MAX_BLOCKS_PER_FRAME
    if magic != FRAME_MAGIC or header_length & 7 or not MIN_FRAME_HEADER_SIZE <= header_length <= longest:
        raise FrameInvalid("not a frame header")
    if version == FRAME_VERSION and header_length != 72 + 8 * block_count:
        raise FrameInvalid("frame header contradicts itself")
    if len(buf) - offset < header_length:
        raise FrameIncomplete(header_length)
    end = offset + header_length - 8
    if xxh3_64_intdigest(buf[offset:end]) != _CHECKSUM.unpack_from(buf, end)[0]:
        raise FrameInvalid("checksum of the frame header does not match")
    if version != FRAME_VERSION:
        raise UnsupportedFormatVersion(f"frame of format version {version}; this build reads {FRAME_VERSION}")
    ledger_id, epoch, first_entry_id, durable_entry_id, broker_time_ms, payload_length = _FIXED.unpack_from(
        buf, offset
    )[6:]
    blocks = tuple(map(_block_span, _SPAN.iter_unpack(buf[offset + 64 : end])))
    all_entries = all_bytes = 0
    is_sound = flags <= _KNOWN_FLAGS and not reserved
    for length, entries, messages in blocks:
        all_bytes += length
        all_entries += entries
        is_sound &= 0 < entries <= messages and not length & 7
    if not is_sound or payload_length != all_bytes:
        raise FrameInvalid("frame header contradicts itself")
    return FrameHeader(
        ledger_id,
        epoch,
        first_entry_id,
        durable_entry_id,
        broker_time_ms,
        header_length,
        payload_length,
        all_entries,
        blocks,
        flags,
    )
