"""Segment headers, the first 4096 bytes of a ledger's file (ADR 0002).

After them the frames start aligned.

offset  type  field
0       8s    magic "PRAYSEG\\n"
8       u16   version
10      u16   length of the topic's name
12      u32   header length, 4096
16      u64   compatible features: unknown ones may be ignored
24      u64   incompatible features: unknown ones forbid reading
32      i64   ledger_id
40      u64   epoch of the writer
48      i64   created_ms
56      u32   segment_index within the ledger
60      i32   partition, -1 if the topic is not partitioned
64      topic, UTF-8, then zeros
4088    u64   checksum of all before
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.format.checksum import Buffer, checksum

SEGMENT_HEADER_SIZE = 4096
SEGMENT_VERSION = 1
KNOWN_INCOMPATIBLE_FEATURES = 0

_MAGIC = b"PRAYSEG\n"
_FIXED = struct.Struct("<8sHHIQQqQqIi")
_CHECKSUM = struct.Struct("<Q")
_CHECKED_SIZE = SEGMENT_HEADER_SIZE - _CHECKSUM.size
MAX_TOPIC_BYTES = _CHECKED_SIZE - _FIXED.size


@dataclass(frozen=True)
class SegmentHeader:
    """Whose entries a segment file holds and which build may read it."""

    ledger_id: int
    segment_index: int
    epoch: int
    topic: str
    partition: int
    created_ms: int
    compatible_features: int = 0
    incompatible_features: int = 0

    def encode(self) -> bytes:
        """Return the 4096 bytes; raises ValueError if the topic's name is longer than 4024 bytes."""
        topic = self.topic.encode()
        if len(topic) > MAX_TOPIC_BYTES:
            raise ValueError(f"topic has {len(topic)} bytes; a segment header has room for {MAX_TOPIC_BYTES}")
        fixed = _FIXED.pack(
            _MAGIC,
            SEGMENT_VERSION,
            len(topic),
            SEGMENT_HEADER_SIZE,
            self.compatible_features,
            self.incompatible_features,
            self.ledger_id,
            self.epoch,
            self.created_ms,
            self.segment_index,
            self.partition,
        )
        head = (fixed + topic).ljust(_CHECKED_SIZE, b"\0")
        return head + _CHECKSUM.pack(checksum(head))

    @classmethod
    def decode(cls, buf: Buffer, path: str) -> SegmentHeader:
        """Read a header back; raises CorruptData, or UnsupportedFormatVersion for a newer build's file."""
        if len(buf) < SEGMENT_HEADER_SIZE:
            raise CorruptData(path, 0, f"segment header cut off after {len(buf)} bytes")
        fixed = _FIXED.unpack_from(buf)
        magic, version, topic_length, header_length, compatible, incompatible = fixed[:6]
        if magic != _MAGIC or header_length != SEGMENT_HEADER_SIZE:
            raise CorruptData(path, 0, "not a segment header")
        # Checked before the version is looked at: a flipped bit there is damage, not a newer build.
        if checksum(buf[:_CHECKED_SIZE]) != _CHECKSUM.unpack_from(buf, _CHECKED_SIZE)[0]:
            raise CorruptData(path, 0, "checksum of the segment header does not match")
        if version != SEGMENT_VERSION or incompatible & ~KNOWN_INCOMPATIBLE_FEATURES:
            raise UnsupportedFormatVersion(
                f"{path}: segment of format version {version} with features {incompatible:#x}; "
                f"this build reads version {SEGMENT_VERSION} with {KNOWN_INCOMPATIBLE_FEATURES:#x}"
            )
        topic = bytes(buf[_FIXED.size : _FIXED.size + topic_length])
        if topic_length > MAX_TOPIC_BYTES:
            raise CorruptData(path, 0, "topic's name runs out of the segment header")
        ledger_id, epoch, created_ms, segment_index, partition = fixed[6:]
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            raise CorruptData(path, 0, "topic's name is not UTF-8") from None
        return cls(ledger_id, segment_index, epoch, name, partition, created_ms, compatible, incompatible)
