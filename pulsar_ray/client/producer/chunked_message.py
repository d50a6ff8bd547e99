"""Cuts a message that is too large for one block into chunks (ADR 0038).

Each is a block of its own. The chunks are slices of the one payload, compressed as a whole before. They are
encoded when they are written, so that a large message takes no memory beside itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.producer.send_callbacks import (
    NO_ID,
    BlockDone,
    SendCallback,
    complete_callback,
    fail_callbacks,
)
from pulsar_ray.client.producer.unconfirmed_blocks import BlockNumbers, UnconfirmedBlock
from pulsar_ray.errors import MessageTooBig, PulsarException
from pulsar_ray.format.block import BLOCK_HEADER_SIZE, check_block_size, encode_block
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.compression import MAX_CHUNKED_LENGTH, compress
from pulsar_ray.format.metadata import MAX_CHUNKS, BlockMetadata, ChunkInfo, encode_metadata
from pulsar_ray.model.message_id import DUPLICATE_LEDGER, MessageId


class ChunkedMessage:
    """Holds one message of several chunks, all of which have its sequence id.

    The last chunk has key, properties and times; the message stands in the log where that one does.
    """

    __slots__ = (
        "_chunk_bytes",
        "_codec",
        "_metadata",
        "_payload",
        "_publish_time_ms",
        "_uncompressed_length",
        "chunk_count",
        "size",
    )

    def __init__(
        self,
        payload: Buffer,
        codec: int,
        uncompressed_length: int,
        chunk_bytes: int,
        metadata: BlockMetadata,
        publish_time_ms: int,
    ) -> None:
        self._payload = memoryview(payload)
        self._codec = codec
        self._uncompressed_length = uncompressed_length
        self._chunk_bytes = chunk_bytes
        self._metadata = metadata
        self._publish_time_ms = publish_time_ms
        self.size = len(payload)
        """Bytes as stored, without headers."""
        self.chunk_count = -(-self.size // chunk_bytes)

    @classmethod
    def cut(
        cls, value: bytes, fields: MessageFields | None, codec: int, chunk_bytes: int, max_block_bytes: int
    ) -> ChunkedMessage | None:
        """Cut a message into chunks of so many bytes.

        None if it is small enough, once compressed.

        Raises MessageTooBig if it is too large even so, or its metadata are.
        """
        length = len(value)
        if length > MAX_CHUNKED_LENGTH:
            raise MessageTooBig(
                f"a message of {length} bytes; at most {MAX_CHUNKED_LENGTH} in chunks: store it elsewhere "
                "and send a reference"
            )
        payload: Buffer = value
        if codec:
            payload = compress(codec, value)
            if len(payload) >= length:
                codec, payload = 0, value
        if len(payload) <= chunk_bytes:
            return None
        now_ms = time.time_ns() // 1_000_000
        message = cls(payload, codec, length, chunk_bytes, _metadata(fields, now_ms), now_ms)
        if message.chunk_count > MAX_CHUNKS:
            raise MessageTooBig(
                f"{message.size} bytes in chunks of {chunk_bytes} are {message.chunk_count} chunks, at most "
                f"{MAX_CHUNKS}: raise chunk_max_message_size"
            )
        around = BLOCK_HEADER_SIZE + len(encode_metadata(message._metadata)) + _CHUNK_FIELD_BYTES
        check_block_size(chunk_bytes, chunk_bytes + around, chunk_bytes, max_block_bytes)
        return message

    def blocks(
        self,
        numbers: BlockNumbers,
        producer_name: str,
        sequence_id: int,
        callback: SendCallback | None,
        partition: int,
        stored: Callable[[int], None],
        schema_version: bytes | None = None,
    ) -> list[UnconfirmedBlock]:
        """Make its blocks, which take their numbers.

        The callback follows on the receipt of all of them.
        """
        receipts = _Receipts(callback, partition, sequence_id, self.chunk_count, stored)
        uuid = f"{producer_name}-{sequence_id}"
        blocks: list[UnconfirmedBlock] = []
        for chunk_id in range(self.chunk_count):
            is_last = chunk_id + 1 == self.chunk_count
            metadata = (self._metadata if is_last else BlockMetadata())._replace(
                producer_name=producer_name,
                schema_version=schema_version,
                chunk=ChunkInfo(uuid, chunk_id, self.chunk_count, self.size),
            )
            start = chunk_id * self._chunk_bytes
            part = self._payload[start : start + self._chunk_bytes]
            blocks.append(
                UnconfirmedBlock(
                    numbers.next_seq,
                    1,
                    int(is_last),
                    [],
                    len(part),
                    # The time of the others begins when they are written: the message may take long.
                    0.0 if chunk_id else time.monotonic(),
                    receipts.of(chunk_id),
                    self._encoding(part, numbers.incarnation, numbers.next_seq, sequence_id, metadata),
                )
            )
            numbers.next_seq += 1
        return blocks

    def _encoding(
        self, part: memoryview, incarnation: int, entry_seq: int, sequence_id: int, metadata: BlockMetadata
    ) -> Callable[[], list[Buffer]]:
        def encode() -> list[Buffer]:
            return encode_block(
                part,
                incarnation=incarnation,
                entry_seq=entry_seq,
                first_sequence_id=sequence_id,
                last_sequence_id=sequence_id,
                publish_time_ms=self._publish_time_ms,
                codec=self._codec,
                uncompressed_length=self._uncompressed_length,
                metadata=metadata,
            )

        return encode


_CHUNK_FIELD_BYTES = 512
"""At least what the producer's name and the field `chunk` take."""


def _metadata(fields: MessageFields | None, now_ms: int) -> BlockMetadata:
    if fields is None:
        return BlockMetadata()
    deliver_at = fields.deliver_at
    is_due = deliver_at is None or deliver_at <= now_ms
    return fields.metadata()._replace(deliver_at=None if is_due else deliver_at)


class _Receipts:
    """Counts the receipts of a message's chunks.

    It fails with the first of them that does.
    """

    __slots__ = ("_callback", "_first", "_left", "_partition", "_sequence_id", "_stored")

    def __init__(
        self,
        callback: SendCallback | None,
        partition: int,
        sequence_id: int,
        chunks: int,
        stored: Callable[[int], None],
    ) -> None:
        self._callback = callback
        self._partition = partition
        self._sequence_id = sequence_id
        self._stored = stored
        self._left = chunks
        self._first: MessageId | None = None

    def of(self, chunk_id: int) -> BlockDone:
        """The completion of one chunk; chunks are completed in their order."""

        def done(ledger_id: int, entry_id: int, error: PulsarException | None, stored_before: int) -> None:
            if self._left <= 0:
                return
            if error is not None:
                self._left = 0
                fail_callbacks([self._callback], error)
                return
            if chunk_id == 0:
                self._first = MessageId(self._partition, ledger_id, entry_id)
            self._left -= 1
            if self._left:
                return
            self._stored(self._sequence_id)
            if self._callback is None:
                return
            if ledger_id == DUPLICATE_LEDGER:
                complete_callback(self._callback, NO_ID)
            else:
                last = MessageId(self._partition, ledger_id, entry_id, first_chunk=self._first)
                complete_callback(self._callback, last)

        return done
