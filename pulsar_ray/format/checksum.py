"""The one checksum of every stored byte: xxh3_64 of the bytes joined."""

from __future__ import annotations

from typing import TypeAlias

from xxhash import xxh3_64, xxh3_64_intdigest

# Holds bytes to be stored: also pyarrow.Buffer, which has no type hints.
Buffer: TypeAlias = bytes | bytearray | memoryview


def checksum(*buffers: Buffer) -> int:
    """Return the unsigned 64-bit checksum of the buffers' concatenation, without joining them."""
    if len(buffers) == 1:
        return xxh3_64_intdigest(buffers[0])
    digest = xxh3_64(buffers[0])
    for buffer in buffers[1:]:
        digest.update(buffer)
    return digest.intdigest()
