"""Knows how large and how late messages a partition takes, and in which pieces."""

from __future__ import annotations

from collections.abc import Sized
from typing import NamedTuple

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.batch_builder import METADATA_ALLOWANCE
from pulsar_ray.client.producer.chunked_message import ChunkedMessage
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.errors import MessageTooBig
from pulsar_ray.format.block import MAX_MESSAGE_SIZE, MAX_ROWS, check_block_size
from pulsar_ray.format.delivery_times import check_delay
from pulsar_ray.format.encrypted_block import TAG_BYTES
from pulsar_ray.format.table import MAX_BATCH_BYTES
from pulsar_ray.session.requests import ProducerOpened

MAX_UNCOMPRESSED_BYTES = 64 * 1024 * 1024
_ARROW_BYTES = 1024  # an Arrow message around its rows
_ROW_BYTES = 40  # offsets, validity, ids and times of one row in all columns


class BulkLimits(NamedTuple):
    """The most rows and bytes of a block of `send_many` and `send_arrow`.

    Only a row that is larger by itself is above.
    """

    max_rows: int
    max_bytes: int

    @classmethod
    def of(cls, opened: ProducerOpened) -> BulkLimits:
        """Take the broker's settings, or less if `max_message_size` leaves no room."""
        rows = max(1, min(opened.max_block_rows, opened.max_message_size // 128))
        room = opened.max_message_size - _ARROW_BYTES - _ROW_BYTES * rows
        return cls(rows, max(1, min(opened.max_block_bytes, room)))


class PartitionLimits:
    """Holds the limits of a partition's answer; without one those of the format."""

    __slots__ = (
        "_codec",
        "_options",
        "bulk",
        "chunk_bytes",
        "max_delivery_delay_ms",
        "max_message_size",
        "opened",
    )

    def __init__(self, options: ProducerOptions, opened: ProducerOpened | None = None) -> None:
        self._options = options
        self._codec = int(options.compression_type)
        self.opened = opened
        """The partition's answer; None before there is one."""
        self.bulk = BulkLimits(MAX_ROWS, MAX_BATCH_BYTES)
        self.chunk_bytes = 0
        """The size above which a message is cut into chunks; 0 if none is."""
        self.max_message_size = MAX_MESSAGE_SIZE
        """The size in bytes that the partition takes in one block."""
        self.max_delivery_delay_ms = 0
        """How late a message may be delivered; 0 is no limit."""
        if opened is not None:
            if options.encryption_key is not None:
                opened = opened._replace(max_message_size=opened.max_message_size - TAG_BYTES)
            self.bulk = BulkLimits.of(opened)
            self.max_message_size = opened.max_message_size
            self.max_delivery_delay_ms = opened.max_delivery_delay_ms
            if options.chunking_enabled:
                wanted = options.chunk_max_message_size
                self.chunk_bytes = min(self.max_message_size, wanted if wanted > 0 else self.max_message_size)

    def changed(self, max_message_size: int, max_delivery_delay_ms: int) -> PartitionLimits:
        """The limits from now on, after policies have changed."""
        if self.opened is None:
            return self
        now = self.opened._replace(
            max_message_size=max_message_size, max_delivery_delay_ms=max_delivery_delay_ms
        )
        return PartitionLimits(self._options, now)

    def is_chunked(self, value: bytes | None) -> bool:
        """Whether a message is cut into chunks, unless compression makes it small enough."""
        return bool(self.chunk_bytes) and value is not None and len(value) > self.chunk_bytes

    def goes_alone(self, value: Sized | None) -> bool:
        """Whether a row leaves no room for others, and is sent as `send` sends it.

        It is one of a table or list. A producer that makes chunks may cut it up; its fields take room, too.
        """
        return bool(self.chunk_bytes) and value is not None and len(value) > self.chunk_bytes // 2

    def cut(self, value: bytes | None, fields: MessageFields | None) -> ChunkedMessage | None:
        """Cut a message into chunks; None if it is small enough, perhaps once compressed.

        Raises what `ChunkedMessage.cut` raises.
        """
        size = self.chunk_bytes
        if not size or value is None or len(value) <= size:
            return None
        return ChunkedMessage.cut(value, fields, self._codec, size, size + METADATA_ALLOWANCE)

    def check_size(self, payload_bytes: int) -> None:
        """Refuse a payload above the size that the partition takes.

        Raises MessageTooBig; compression may only make a payload smaller.
        """
        if not self._codec:
            check_block_size(payload_bytes, payload_bytes, self.max_message_size)
        elif payload_bytes > MAX_UNCOMPRESSED_BYTES:
            raise MessageTooBig(
                f"a message of {payload_bytes} bytes; at most {MAX_UNCOMPRESSED_BYTES} uncompressed"
            )

    def check_delay(self, deliver_at: int, now_ms: int) -> None:
        """Raise NotAllowedError for a message that the topic does not deliver so late."""
        if self.max_delivery_delay_ms:
            check_delay(deliver_at, now_ms, self.max_delivery_delay_ms)
