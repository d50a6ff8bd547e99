"""Reads and decodes delivered blocks: from files of this node, or as they came."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

from pulsar_ray.client.options.schema import Schema
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.received.receiver_queue import QueuedChunk, QueuedDelivery
from pulsar_ray.client.schemas.readings import TopicReadings
from pulsar_ray.errors import CorruptData, CryptoError, InvalidMessage
from pulsar_ray.format.block import ENCRYPTED, parse_block_header
from pulsar_ray.format.block_memory import MIN_BLOCK_BYTES, BlockMemory
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.chunked_payload import ChunkedPayload, verify
from pulsar_ray.format.encrypted_block import undecrypted
from pulsar_ray.format.payload import DecodedBlock, Decrypt, decode_block, without_key
from pulsar_ray.ledger.offloaded import is_stored
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.managed_ledger.log.trimmed_ledgers import NONE_TRIMMED, last_trimmed_ledger
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute

MAX_OPEN_FILES = 64
_CHUNK_HEADER_BYTES = 512


class _OpenSegment:
    """A file, and its blocks that are in use. A thread reads under the lock."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reader = SegmentReader(Path(path))
        self.lock = threading.Lock()
        self.blocks: WeakValueDictionary[int, DecodedBlock] = WeakValueDictionary()
        self.is_closed = False

    def close(self) -> None:
        """Wait for a thread that reads, and close the file."""
        with self.lock:
            self.is_closed = True
            self.reader.close()


class SegmentFiles:
    """A bounded cache of open segments.

    Consumers of several subscriptions share a block while one of them uses it: it is read, verified and
    decoded once, unless it is a short message, which costs less to read than to share. Consumers of different
    partitions do not wait for each other.
    """

    def __init__(self, limit: int = MAX_OPEN_FILES) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _OpenSegment] = OrderedDict()
        # The last one of them: the one that is read again and again.
        self._newest: _OpenSegment | None = None
        self._limit = limit
        self._memory = BlockMemory()

    def decoded_block(
        self, path: str, offset: int, length: int, decrypt: Decrypt = without_key
    ) -> DecodedBlock:
        """A delivered block. Raises SegmentGone, and what decoding it raises.

        An encrypted one is not shared: other consumers have other keys.
        """
        while True:
            segment = self._newest
            if segment is None or segment.path != path:
                segment = self._segment(path)
            block = segment.blocks.get(offset)
            if block is not None:  # threads that get a block at once need not wait for each other
                return block
            with segment.lock:
                if segment.is_closed:  # others opened so many files meanwhile
                    continue
                block = segment.blocks.get(offset)
                if block is None:
                    reader, is_large = segment.reader, length >= MIN_BLOCK_BYTES
                    read = (
                        self._read_large(reader, offset, length) if is_large else reader.read(offset, length)
                    )
                    block = decode_block(read, decrypt=decrypt)
                    if (is_large or block.message_count > 1) and not block.header.flags & ENCRYPTED:
                        segment.blocks[offset] = block
                return block

    def read_chunk(self, path: str, offset: int, length: int, payload: ChunkedPayload) -> None:
        """Read a chunk straight into the message that it is part of. Raises as `decoded_block`."""
        while True:
            segment = self._segment(path)
            with segment.lock:
                if not segment.is_closed:
                    _read_chunk(segment.reader, offset, length, payload)
                    return

    def stored_bytes(self, path: str, offset: int, length: int) -> bytes:
        """A block as it is stored. Raises SegmentGone, CorruptData for one that is cut off."""
        with SegmentReader(Path(path)) as reader:
            return bytes(reader.read_block(offset, length))

    def has(self, path: str) -> bool:
        """Whether a segment can be read: it is open here, or there."""
        return path in self._open or is_stored(Path(path))

    def _segment(self, path: str) -> _OpenSegment:
        closing = None
        with self._lock:
            segment = self._open.get(path)
            if segment is not None:
                self._open.move_to_end(path)
                self._newest = segment
                return segment
            segment = self._newest = self._open[path] = _OpenSegment(path)
            if len(self._open) > self._limit:
                closing = self._open.popitem(last=False)[1]
        if closing is not None:
            closing.close()
        return segment

    def _read_large(self, reader: SegmentReader, offset: int, length: int) -> Buffer:
        buffer = self._memory.take(length, offset)
        reader.read_into(offset, buffer)
        return buffer

    def close(self) -> None:
        """Close all files and keep no memory."""
        with self._lock:
            closing = list(self._open.values())
            self._open.clear()
            self._newest = None
        for segment in closing:
            segment.close()
        self._memory.close()


def _read_chunk(reader: SegmentReader, offset: int, length: int, payload: ChunkedPayload) -> None:
    path = str(reader.path)
    beginning = reader.read(offset, min(length, _CHUNK_HEADER_BYTES))
    header_length = int.from_bytes(beginning[8:12], "little")
    if len(beginning) < header_length <= length:
        beginning = reader.read(offset, header_length)
    header = parse_block_header(beginning, 0, path)
    if header.total_length != length:
        raise CorruptData(path, offset, "not the block that was delivered")
    if header.flags & ENCRYPTED:
        payload.add(reader.read(offset, length), path)
        return
    room = payload.room_for(header, header.payload_length)
    start = offset + header.header_length
    reader.read_into(start, room)
    padding = reader.read(start + len(room), length - header.header_length - len(room))
    verify(beginning, header, room, padding, path)


def can_read(reach: tuple[str, str]) -> bool:
    """Whether this process sees the segments: the value beside them can be read back."""
    path, value = reach
    try:
        with open(path) as file:
            return file.read() == value
    except OSError:
        return False


class PartitionFiles:
    """Knows the directory that a partition was attached in last, and the segments there."""

    def __init__(self, opened: SegmentFiles) -> None:
        self._opened = opened
        self.are_readable = False
        """Whether this process can read the partition's segments."""
        self._directory = ""
        self._segment = (-1, -1)
        """The segment that was asked for last, and its path."""
        self._path = ""
        self._last_deleted = NONE_TRIMMED
        """The highest ledger that was found deleted."""

    def attached(self, attached: AttachReply) -> bool:
        """Take another attachment; returns whether files that could be read are left for it."""
        could_read, self.are_readable = self.are_readable, can_read(attached.reach)
        former, self._directory = self._directory, attached.directory
        self._segment = (-1, -1)
        return bool(could_read and former and (former != attached.directory or not self.are_readable))

    def path(self, ledger_id: int, segment_index: int) -> str:
        """The path of a segment."""
        if (ledger_id, segment_index) != self._segment:
            self._segment = (ledger_id, segment_index)
            self._path = f"{self._directory}/{segment_name(ledger_id, segment_index)}"
        return self._path

    def was_left(self, path: str) -> bool:
        """Whether a segment was in a directory that the partition is not in any more."""
        return str(Path(path).parent) != self._directory

    def loaded(self, delivery: QueuedDelivery) -> QueuedDelivery:
        """A delivery with its bytes in memory. Raises what reading them raises."""
        read = self._opened.stored_bytes
        chunks = [
            chunk._replace(data=memoryview(read(chunk.path, chunk.offset, chunk.length)))
            for chunk in delivery.chunks
        ]
        data = memoryview(read(delivery.path, delivery.offset, delivery.length))
        return delivery._replace(data=data, chunks=chunks or ())

    def was_deleted(self, delivery: QueuedDelivery) -> bool:
        """Whether the partition has deleted what is missing of a delivery."""
        if not delivery.length:
            return True  # the dispatcher has found out
        if not self.are_readable:
            return False
        first = delivery.chunks[0].ledger_id if delivery.chunks else delivery.ledger_id
        if first > self._last_deleted:
            self._last_deleted = last_trimmed_ledger(Path(delivery.path).parent)
        return first <= self._last_deleted

    def is_deleted(self, delivery: QueuedDelivery) -> bool:
        """Whether the ledger of a delivery was deleted while it waited; looks for its file."""
        is_here = delivery.length and (delivery.data is not None or self._opened.has(delivery.path))
        return not is_here and self.was_deleted(delivery)


KEEP_DECODED = 2
UNSTORED = -1
"""Ledger and entry id of every message of a non-persistent topic."""


class BlockDecoder:
    """Decodes the blocks of one partition, once each if their parts come close together."""

    def __init__(
        self,
        files: SegmentFiles,
        route: PartitionRoute,
        schema: Schema,
        readings: TopicReadings | None = None,
        decrypt: Decrypt = without_key,
    ) -> None:
        self._files = files
        self._route = route
        self._schema = schema
        self._readings = readings
        """By the versions of the topic's schema; None where none matters."""
        self._decrypt = decrypt
        self.take_undecrypted: Callable[[QueuedDelivery], bool] | None = None
        """Set where what cannot be decrypted is handed out as it is.

        Whether it is the first part of its block to come: several messages are handed out as one.
        """
        self._decoded: list[tuple[tuple[int, int], ReceivedBlock]] = []

    def decode(self, delivery: QueuedDelivery) -> ReceivedBlock:
        """Read, verify and decode a delivered block. Raises CorruptData, SegmentGone, InvalidMessage."""
        if not delivery.length:
            raise SegmentGone(delivery.path)
        if delivery.unread is not None:
            raise delivery.unread.again()
        key = delivery.ledger_id, delivery.first_entry_id
        for known, block in self._decoded:
            if (
                known == key
                and block.redelivery_count == delivery.redelivery_count
                and block.row_failures == delivery.row_failures
            ):
                return block
        try:
            if delivery.chunks:
                decoded = self._chunked(delivery)
            elif delivery.data is None:
                decoded = self._files.decoded_block(
                    delivery.path, delivery.offset, delivery.length, self._decrypt
                )
            else:
                decoded = decode_block(delivery.data, decrypt=self._decrypt)
        except CorruptData as error:
            raise CorruptData(delivery.path or self._route.topic, delivery.offset, error.text) from None
        except CryptoError as error:
            decoded = self._undecrypted(delivery, error)
        readings = self._readings
        block = ReceivedBlock(
            decoded,
            topic_name=self._route.topic,
            partition=self._route.partition,
            ledger_id=delivery.ledger_id,
            first_entry_id=delivery.first_entry_id,
            redelivery_count=delivery.redelivery_count,
            row_failures=delivery.row_failures,
            schema=self._schema if readings is None else readings.of(decoded.metadata.schema_version),
        )
        if decoded.is_columnar:
            # Now, while the processor has them in its cache. An error is for whoever asks for the rows.
            with contextlib.suppress(InvalidMessage):
                decoded.rows()
        if delivery.chunks:
            block.first_chunk = delivery.chunks[0].ledger_id, delivery.chunks[0].entry_id
        if block.message_count > 1:
            self._decoded = [(key, block), *self._decoded[: KEEP_DECODED - 1]]
        return block

    def _undecrypted(self, delivery: QueuedDelivery, error: CryptoError) -> DecodedBlock:
        """Return the encrypted payload as one message.

        Raises `error` where it is not handed out.
        """
        if self.take_undecrypted is None:
            raise error
        decoded = undecrypted(self.stored_bytes(delivery))
        if decoded.is_many_as_one and not self.take_undecrypted(delivery):
            raise error
        return decoded

    def _chunked(self, delivery: QueuedDelivery) -> DecodedBlock:
        """Put a message together that came in several chunks."""
        chunks = [*delivery.chunks, _own_place(delivery)]
        payload = ChunkedPayload(sum(chunk.length for chunk in chunks), self._decrypt)
        for chunk in chunks:
            if chunk.data is None:
                self._files.read_chunk(chunk.path, chunk.offset, chunk.length, payload)
            else:
                payload.add(chunk.data, chunk.path)
        return payload.decoded()

    def stored_bytes(self, delivery: QueuedDelivery) -> bytes:
        """A block as it is stored, and the chunks before it, undecoded. Raises SegmentGone, CorruptData."""
        parts = [
            data if data is not None else self._files.stored_bytes(path, offset, length)
            for _ledger_id, _entry_id, path, offset, length, data in (*delivery.chunks, _own_place(delivery))
        ]
        return b"".join(parts)

    def decode_unstored(self, delivery: QueuedDelivery) -> ReceivedBlock:
        """Decode a block of a non-persistent topic, whose messages have no place."""
        block = self.decode(delivery)
        block.ledger_id = block.first_entry_id = UNSTORED
        return block


def _own_place(delivery: QueuedDelivery) -> QueuedChunk:
    """The place of the delivered block itself, perhaps the last chunk of its message."""
    return QueuedChunk(*delivery.key, delivery.path, delivery.offset, delivery.length, delivery.data)
