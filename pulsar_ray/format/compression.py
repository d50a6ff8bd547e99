"""The five codecs a payload may be stored with; the numbers are Pulsar's CompressionType."""

from __future__ import annotations

import threading
import zlib
from functools import cached_property
from typing import TYPE_CHECKING, cast

from pulsar_ray.format.checksum import Buffer
from pulsar_ray.on_demand import OnDemand

if TYPE_CHECKING:
    import lz4.block as lz4_block
    import snappy
    import zstandard
else:
    # Few dispatchers ever unpack a payload.
    lz4_block, snappy, zstandard = map(OnDemand, ("lz4.block", "snappy", "zstandard"))

NONE = 0
LZ4 = 1
ZLIB = 2
ZSTD = 3
SNAPPY = 4

# A payload of max_message_size may unpack to 25 times as much; more is taken for a bomb.
MAX_UNCOMPRESSED_LENGTH = 128 * 1024 * 1024

# The most that every codec takes at once; LZ4 takes the least. A message in chunks may be so large.
MAX_CHUNKED_LENGTH = 0x7E000000

_VARINT_CONTINUES = 0x80


class UnknownCodec(ValueError):
    """The codec's number is none of the five."""


class _ZstdContexts(threading.local):
    """One compressor and decompressor per thread: they are costly to make and not thread-safe."""

    @cached_property
    def compressor(self) -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor()

    @cached_property
    def decompressor(self) -> zstandard.ZstdDecompressor:
        return zstandard.ZstdDecompressor()


_zstd = _ZstdContexts()


def compress(codec: int, buf: Buffer) -> Buffer:
    """Compress one payload; NONE returns it as it is. Raises UnknownCodec."""
    if codec == NONE:
        return buf
    if codec == LZ4:
        return cast("bytes", lz4_block.compress(buf, store_size=False))
    if codec == ZLIB:
        return zlib.compress(buf)
    if codec == ZSTD:
        return _zstd.compressor.compress(buf)
    if codec == SNAPPY:
        return cast("bytes", snappy.compress(buf))
    raise UnknownCodec(f"compression codec {codec} is none of 0..4")


def decompress(
    codec: int, buf: Buffer, uncompressed_length: int, limit: int = MAX_UNCOMPRESSED_LENGTH
) -> Buffer:
    """Undo `compress`, never making more than `uncompressed_length` bytes.

    Raises ValueError if the result has not exactly that length, if that is above `limit`, or for garbage;
    UnknownCodec (a ValueError) for a codec of a newer build.
    """
    if uncompressed_length > limit:
        raise ValueError(f"payload claims {uncompressed_length} bytes uncompressed, the limit is {limit}")
    if codec == NONE:
        unpacked = buf
    elif codec == LZ4:
        unpacked = _from_lz4(buf, uncompressed_length)
    elif codec == ZLIB:
        unpacked = _from_zlib(buf, uncompressed_length)
    elif codec == ZSTD:
        unpacked = _from_zstd(buf, uncompressed_length)
    elif codec == SNAPPY:
        unpacked = _from_snappy(buf, uncompressed_length)
    else:
        raise UnknownCodec(f"compression codec {codec} is none of 0..4")
    if len(unpacked) != uncompressed_length:
        raise ValueError(f"payload has {len(unpacked)} bytes uncompressed instead of {uncompressed_length}")
    return unpacked


def _from_lz4(buf: Buffer, uncompressed_length: int) -> bytes:
    try:
        return cast("bytes", lz4_block.decompress(buf, uncompressed_size=uncompressed_length))
    except lz4_block.LZ4BlockError as error:
        raise ValueError(f"LZ4: {error}") from None


def _from_zlib(buf: Buffer, uncompressed_length: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One byte more than expected, because 0 would mean without limit.
        unpacked = stream.decompress(buf, uncompressed_length + 1)
    except zlib.error as error:
        raise ValueError(f"ZLIB: {error}") from None
    if not stream.eof or stream.unused_data:
        raise ValueError("ZLIB: stream is cut off, too long or followed by other bytes")
    return unpacked


def _from_zstd(buf: Buffer, uncompressed_length: int) -> bytes:
    try:
        # The decompressor allocates what the frame announces, so that has to be checked before.
        if zstandard.frame_content_size(buf) != uncompressed_length:
            raise ValueError("ZSTD: frame announces another length than the block header")
        return _zstd.decompressor.decompress(buf, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"ZSTD: {error}") from None


def _from_snappy(buf: Buffer, uncompressed_length: int) -> bytes:
    if _snappy_length(buf) != uncompressed_length:
        raise ValueError("SNAPPY: payload announces another length than the block header")
    try:
        return cast("bytes", snappy.uncompress(buf))
    except snappy.UncompressError as error:
        raise ValueError(f"SNAPPY: {error}") from None


def _snappy_length(buf: Buffer) -> int:
    """Return the length that raw snappy data announces in its leading varint, -1 for garbage."""
    length = 0
    for place, byte in enumerate(buf[:5]):
        length |= (byte & ~_VARINT_CONTINUES) << (7 * place)
        if not byte & _VARINT_CONTINUES:
            return length
    return -1
