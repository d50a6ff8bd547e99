"""Holds messages that go to the partition as one block, and encodes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pulsar_ray.format.block import encode_block
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.delivery_times import encode_times
from pulsar_ray.format.metadata import BlockMetadata
from pulsar_ray.format.payload import encode_batch, encode_rows, encode_single

SendCallback = Callable[[Any, Any], None]
"""callback(Result, MessageId)."""


class SealedBatch:
    """Holds messages that will be one block; nothing is added any more.

    `is_batch`: one entry, whose messages have batch indexes. Otherwise every message is an entry of its own
    and takes one entry_seq. Lists other than `values` and `callbacks` are None if no message has such a
    value.
    """

    __slots__ = (
        "callbacks",
        "delivery_times",
        "entries",
        "event_times",
        "first_sequence_id",
        "is_batch",
        "keys",
        "last_sequence_id",
        "message_count",
        "ordering_keys",
        "packed",
        "payload_bytes",
        "properties",
        "publish_time_ms",
        "sequence_ids",
        "values",
    )

    def __init__(
        self,
        values: list[bytes | None],
        callbacks: list[SendCallback | None],
        *,
        is_batch: bool,
        publish_time_ms: int,
        payload_bytes: int,
        first_sequence_id: int,
        last_sequence_id: int,
        sequence_ids: list[int] | None = None,
        keys: list[str | None] | None = None,
        ordering_keys: list[str | None] | None = None,
        properties: list[Mapping[str, str] | None] | None = None,
        event_times: list[int | None] | None = None,
        delivery_times: list[int | None] | None = None,
        packed: Buffer | None = None,
    ) -> None:
        self.values = values
        self.callbacks = callbacks
        self.is_batch = is_batch
        self.message_count = len(values)
        self.entries = 1 if is_batch else len(values)
        """How many entries, and entry_seq numbers, the block takes."""
        self.publish_time_ms = publish_time_ms
        self.payload_bytes = payload_bytes
        self.first_sequence_id = first_sequence_id
        self.last_sequence_id = last_sequence_id
        self.sequence_ids = sequence_ids
        self.keys = keys
        self.ordering_keys = ordering_keys
        self.properties = properties
        self.event_times = event_times
        self.delivery_times = delivery_times
        """When each message is due; never of a batch, which is one entry."""
        self.packed = packed
        """The only message's payload, compressed already because its size had to be known."""

    def encode(
        self,
        *,
        incarnation: int,
        entry_seq: int,
        producer_name: str,
        codec: int = 0,
        schema_version: bytes | None = None,
    ) -> list[Buffer]:
        """Encode the block; encoding again gives the same buffers.

        Raises ValueError for a value out of range.
        """
        if len(self.values) == 1 and not self.is_batch:
            return self._encode_single(incarnation, entry_seq, producer_name, codec, schema_version)
        key = ordering_key = None
        keys, ordering_keys = self.keys, self.ordering_keys
        if self.is_batch:
            # The dispatcher takes the entry's key from its header; one key for all needs no column.
            key, keys = _shared(keys)
            ordering_key, ordering_keys = _shared(ordering_keys)
        payload, columns = encode_rows(
            self.values,
            keys=keys,
            ordering_keys=ordering_keys,
            properties=self.properties,
            event_times=self.event_times,
            sequence_ids=self.sequence_ids,
        )
        return encode_batch(
            payload,
            columns,
            message_count=len(self.values),
            incarnation=incarnation,
            entry_seq=entry_seq,
            first_sequence_id=self.first_sequence_id,
            last_sequence_id=self.last_sequence_id,
            publish_time_ms=self.publish_time_ms,
            row_is_entry=not self.is_batch,
            codec=codec,
            metadata=BlockMetadata(
                producer_name=producer_name,
                key=key,
                ordering_key=ordering_key,
                schema_version=schema_version,
                delivery_times=None if self.delivery_times is None else encode_times(self.delivery_times),
            ),
        )

    def _encode_single(
        self, incarnation: int, entry_seq: int, producer_name: str, codec: int, schema_version: bytes | None
    ) -> list[Buffer]:
        properties = self.properties and self.properties[0]
        metadata = BlockMetadata(
            producer_name=producer_name,
            key=self.keys[0] if self.keys else None,
            ordering_key=self.ordering_keys[0] if self.ordering_keys else None,
            event_time=self.event_times[0] if self.event_times else None,
            deliver_at=self.delivery_times[0] if self.delivery_times else None,
            properties=dict(properties) if properties else None,
            schema_version=schema_version,
        )
        value = self.values[0]
        if self.packed is not None and value is not None:
            return encode_block(
                self.packed,
                incarnation=incarnation,
                entry_seq=entry_seq,
                first_sequence_id=self.first_sequence_id,
                last_sequence_id=self.first_sequence_id,
                publish_time_ms=self.publish_time_ms,
                codec=codec,
                uncompressed_length=len(value),
                metadata=metadata,
            )
        return encode_single(
            value,
            incarnation=incarnation,
            entry_seq=entry_seq,
            sequence_id=self.first_sequence_id,
            publish_time_ms=self.publish_time_ms,
            codec=codec,
            metadata=metadata,
        )


def _shared(column: list[str | None] | None) -> tuple[str | None, list[str | None] | None]:
    """Take the first key for the header, and leave out a column of equal keys."""
    if column is None:
        return None, None
    first = column[0]
    return first, (None if first is not None and column.count(first) == len(column) else column)
