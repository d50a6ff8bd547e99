"""Encrypts the payload of a block, and shows one that nobody can decrypt (ADR 0156).

A block is encrypted as it is stored: compressed, a batch as a whole. Its header stays readable, so that those
who have no key can store, deliver, count and acknowledge it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulsar_ray.format.block import (
    NULL_VALUE,
    RAW,
    ROW_IS_ENTRY,
    encode_block,
    parse_block_header,
)
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.metadata import EncryptionInfo
from pulsar_ray.format.payload import DecodedBlock

TAG_BYTES = 16
"""By so much an encrypted payload is longer."""

Encrypt = Callable[[Buffer], tuple[EncryptionInfo, bytes]]
"""encrypt(payload) returns how that was done, and the encrypted payload."""


def encrypted_block(buffers: Sequence[Buffer], encrypt: Encrypt) -> list[Buffer]:
    """Encode a block again with its payload encrypted.

    A tombstone alone stays as it is: there is nothing in it.
    """
    block = b"".join(buffers)
    header = parse_block_header(block)
    if header.flags & NULL_VALUE:
        return list(buffers)
    start = header.header_length
    info, payload = encrypt(memoryview(block)[start : start + header.payload_length])
    return encode_block(
        payload,
        incarnation=header.incarnation,
        entry_seq=header.entry_seq,
        first_sequence_id=header.first_sequence_id,
        last_sequence_id=header.last_sequence_id,
        publish_time_ms=header.publish_time_ms,
        message_count=header.message_count,
        payload_format=header.payload_format,
        columns=header.columns,
        codec=header.codec,
        uncompressed_length=header.uncompressed_length,
        flags=header.flags,
        metadata=header.metadata()._replace(encryption=info),
    )


def undecrypted(block: Buffer) -> DecodedBlock:
    """Make one message of a stored block, whose payload is as it is there.

    A message in chunks has the payloads of all of them, which follow one another in `block`.
    """
    payload = bytearray()
    offset = 0
    while offset < len(block):
        header = parse_block_header(block, offset)
        start = offset + header.header_length
        payload += block[start : start + header.payload_length]
        offset += header.total_length
    alone = parse_block_header(block, offset - header.total_length)
    alone.payload_format, alone.columns, alone.message_count, alone.entries = RAW, 0, 1, 1
    alone.flags &= ~ROW_IS_ENTRY
    alone.last_sequence_id = alone.first_sequence_id
    decoded = DecodedBlock(alone, header.metadata(), None, bytes(payload))
    decoded.undecrypted = header
    return decoded
