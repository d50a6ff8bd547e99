"""Putting the payload of a message together from its chunks (ADR 0038)."""

from __future__ import annotations

import io

from pulsar_ray.errors import CorruptData, InvalidMessage
from pulsar_ray.format.block import (
    CHUNK,
    ENCRYPTED,
    RAW,
    BlockHeader,
    parse_block_header,
    verify_bytes,
)
from pulsar_ray.format.checksum import Buffer, checksum
from pulsar_ray.format.compression import MAX_CHUNKED_LENGTH, decompress
from pulsar_ray.format.metadata import ChunkInfo
from pulsar_ray.format.payload import DecodedBlock, Decrypt, decrypted, without_key

CHECKED_HEADER_BYTES = 64
"""Bytes of a header before its checksum."""


class ChunkedPayload:
    """Takes the chunks in order, straight into the memory of the message's bytes.

    Errors are those of `decode_block`: CorruptData for damage, InvalidMessage for what its producer made
    wrongly.
    """

    def __init__(self, stored_bytes: int, decrypt: Decrypt = without_key) -> None:
        """Begin a message whose blocks have so many bytes: its payload cannot have more."""
        self._stored_bytes = stored_bytes
        self._decrypt = decrypt
        self._memory = io.BytesIO()
        self._view = memoryview(b"")
        self._first: ChunkInfo | None = None
        self._filled = 0
        self._next_id = 0
        self._last: BlockHeader | None = None

    def add(self, block: Buffer, path: str = "block") -> None:
        """Take a chunk whose block is in memory."""
        header = parse_block_header(block, 0, path)
        verify_bytes(block, 0, header.total_length, header.checksum, path)
        payload: Buffer = memoryview(block)[
            header.header_length : header.header_length + header.payload_length
        ]
        if header.flags & ENCRYPTED:
            try:
                payload = decrypted(header.metadata(), payload, self._decrypt)
            except ValueError as error:
                raise _wrong(header, str(error)) from None
        self.room_for(header, len(payload))[:] = payload

    def room_for(self, header: BlockHeader, length: int) -> memoryview:
        """Give the memory for the next chunk's payload.

        It has `length` bytes, decrypted if it was encrypted. The caller fills it, and verifies the
        block (`verify`).
        """
        chunk = header.metadata().chunk
        if chunk is None or not header.flags & CHUNK or header.payload_format != RAW:
            raise _wrong(header, "not a chunk")
        if self._first is None:
            self._begin(header, chunk)
        first = self._first
        assert first is not None
        same = (chunk.uuid, chunk.num_chunks, chunk.total_size) == (
            first.uuid,
            first.num_chunks,
            first.total_size,
        )
        if not same or chunk.chunk_id != self._next_id:
            raise _wrong(
                header, f"chunk {chunk.chunk_id} of {chunk.uuid} where {self._next_id} of {first.uuid} is due"
            )
        end = self._filled + length
        if end > first.total_size:
            raise _wrong(header, f"its chunks have more than the {first.total_size} bytes that they announce")
        room = self._view[self._filled : end]
        self._filled, self._next_id, self._last = end, self._next_id + 1, header
        return room

    def _begin(self, header: BlockHeader, chunk: ChunkInfo) -> None:
        if chunk.total_size > min(self._stored_bytes, MAX_CHUNKED_LENGTH):
            raise _wrong(header, f"its blocks do not hold the {chunk.total_size} bytes that it announces")
        self._first = chunk
        # The memory of a BytesIO becomes the message's bytes without a copy.
        self._memory = io.BytesIO(bytes(chunk.total_size))
        self._view = self._memory.getbuffer()

    def decoded(self) -> DecodedBlock:
        """The whole message, with what its last chunk says of it."""
        first, last = self._first, self._last
        if first is None or last is None:
            raise InvalidMessage("a message without chunks")
        if self._next_id != first.num_chunks or self._filled != first.total_size:
            raise _wrong(last, f"{self._next_id} of {first.num_chunks} chunks with {self._filled} bytes")
        self._view.release()
        payload: Buffer = self._memory.getvalue()
        try:
            if last.codec:
                payload = decompress(last.codec, payload, last.uncompressed_length, MAX_CHUNKED_LENGTH)
        except ValueError as error:
            raise _wrong(last, str(error)) from None
        return DecodedBlock(last, last.metadata(), None, bytes(payload))


def verify(header_bytes: Buffer, header: BlockHeader, payload: Buffer, padding: Buffer, path: str) -> None:
    """Verify a chunk whose parts were read to different places; raises CorruptData."""
    view = memoryview(header_bytes)
    fields = view[CHECKED_HEADER_BYTES + 8 : header.header_length]
    if checksum(view[:CHECKED_HEADER_BYTES], fields, payload, padding) != header.checksum:
        raise CorruptData(path, 0, "checksum of the block does not match")


def _wrong(header: BlockHeader, text: str) -> InvalidMessage:
    return InvalidMessage(f"block {header.entry_seq} of incarnation {header.incarnation:#x}: {text}")
