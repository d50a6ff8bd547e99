"""Holds messages that go to a partition as one block, and encodes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.producer.send_callbacks import NO_ID, SendCallback, fail_callbacks
from pulsar_ray.errors import PulsarException, Result
from pulsar_ray.format.block import encode_block
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.delivery_times import encode_times
from pulsar_ray.format.metadata import BlockMetadata
from pulsar_ray.format.payload import encode_batch, encode_rows, encode_single
from pulsar_ray.format.typed_rows import TypedRows
from pulsar_ray.model.message_id import DUPLICATE_LEDGER, MessageId, entry_at

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Batch:
    """Holds columns that grow message by message until the batch is sealed.

    While it is open, only values and callbacks are kept for every message at once. The other columns are
    filled up with None, and sequence ids with the automatic ones, when a later message has something to say
    or when it is sealed. They are None if no message has such a value.
    """

    __slots__ = (
        "_base_id",
        "_base_row",
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

    def __init__(self, publish_time_ms: int, first_sequence_id: int) -> None:
        self.values: list[bytes | None] = []
        self.callbacks: list[SendCallback | None] = []
        self.publish_time_ms = publish_time_ms
        self.keys: list[str | None] | None = None
        self.ordering_keys: list[str | None] | None = None
        self.properties: list[Mapping[str, str] | None] | None = None
        self.event_times: list[int | None] | None = None
        self.delivery_times: list[int | None] | None = None
        """When each message is due; never of a batch that is one entry."""
        self.sequence_ids: list[int] | None = None
        # Rows from _base_row on have the automatic ids from _base_id on.
        self._base_id = first_sequence_id
        self._base_row = 0

    # --- open -------------------------------------------------------------------------------------

    def next_sequence_id(self) -> int:
        """The automatic id of the next message: the highest one so far + 1."""
        return self._base_id + len(self.values) - self._base_row

    def newest_sequence_id(self) -> int:
        """The id of the newest message; there is one."""
        if self.sequence_ids is not None and self._base_row == len(self.values):
            return self.sequence_ids[-1]
        return self.next_sequence_id() - 1

    def number_from(self, first_sequence_id: int) -> None:
        """Let the ids begin there; no message has been given one."""
        self._base_id = first_sequence_id

    def append(
        self, value: bytes | None, callback: SendCallback | None, fields: MessageFields | None
    ) -> None:
        """Add a message."""
        if fields is not None:
            key, ordering_key, properties, event_time, sequence_id, deliver_at = fields
            row = len(self.values)
            if sequence_id is not None and sequence_id != self.next_sequence_id():
                self._set_sequence_id(row, sequence_id)
            if key is not None:
                self.keys = _put(self.keys, row, key)
            if ordering_key is not None:
                self.ordering_keys = _put(self.ordering_keys, row, ordering_key)
            if properties:
                self.properties = _put(self.properties, row, properties)
            if event_time is not None:
                self.event_times = _put(self.event_times, row, event_time)
            if deliver_at is not None:
                self.delivery_times = _put(self.delivery_times, row, deliver_at)
        self.values.append(value)
        self.callbacks.append(callback)

    def undelayed_before(self) -> list[int | None]:
        """Return the delivery times, None for all rows so far that have none."""
        times = self.delivery_times = self.delivery_times or []
        times.extend([None] * (len(self.values) - len(times)))
        return times

    def _set_sequence_id(self, row: int, sequence_id: int) -> None:
        highest = self.next_sequence_id()
        if row == 0 and sequence_id > highest:
            self._base_id = sequence_id
            return
        ids = self._explicit_ids(row)
        ids.append(sequence_id)
        self.sequence_ids = ids
        self._base_id = max(highest, sequence_id + 1)
        self._base_row = row + 1

    def _explicit_ids(self, rows: int) -> list[int]:
        ids = self.sequence_ids or []
        ids.extend(range(self._base_id, self._base_id + rows - len(ids)))
        return ids

    def seal(self, payload_bytes: int, *, is_batch: bool, packed: Buffer | None = None) -> None:
        """Finish the batch, to which nothing is added any more.

        `is_batch`: it is one entry, whose messages have batch indexes. Otherwise every message is an entry of
        its own and takes one entry_seq. `packed` is the only message's payload, compressed already because
        its size had to be known.
        """
        self.message_count = count = len(self.values)
        self.is_batch, self.payload_bytes, self.packed = is_batch, payload_bytes, packed
        self.entries = 1 if is_batch else count
        ids = None if self.sequence_ids is None else self._explicit_ids(count)
        first_id = self._base_id if ids is None else ids[0]
        self.first_sequence_id = first_id
        self.last_sequence_id = first_id + count - 1 if ids is None else max(ids)
        is_run = ids is not None and ids == list(range(first_id, first_id + count))
        self.sequence_ids = None if is_run else ids
        for column in (
            self.keys,
            self.ordering_keys,
            self.properties,
            self.event_times,
            self.delivery_times,
        ):
            if column is not None and len(column) < count:
                column.extend([None] * (count - len(column)))

    # --- sealed -----------------------------------------------------------------------------------

    def encode(
        self,
        *,
        incarnation: int,
        entry_seq: int,
        producer_name: str,
        codec: int = 0,
        schema_version: bytes | None = None,
        typed: TypedRows | None = None,
    ) -> list[Buffer]:
        """Encode the block; encoding again gives the same buffers.

        `typed`: values are rows, which share columns.

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
        values = self.values
        payload, columns = encode_rows(
            values if typed is None or len(values) == 1 else typed.gathered(values),
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

    def complete(
        self,
        partition: int,
        stored: Callable[[int], None],
        ledger_id: int,
        entry_id: int,
        error: PulsarException | None,
        stored_before: int,
    ) -> None:
        """Call back each message of a batch that was stored or failed.

        `stored(its last sequence id)` is called before.
        """
        if error is not None:
            fail_callbacks(self.callbacks, error)
            return
        stored(self.last_sequence_id)
        self._call_back(partition, ledger_id, entry_id, stored_before)

    def _call_back(self, partition: int, ledger_id: int, entry_id: int, stored_before: int) -> None:
        """Call back each message with its id.

        The first `stored_before` messages had been stored before, and get an id that names nothing. Errors
        that a callback raises are logged.
        """
        ok, is_batch, callbacks = Result.Ok, self.is_batch, self.callbacks
        if ledger_id == DUPLICATE_LEDGER:
            stored_before = len(callbacks)
        size = len(callbacks) - stored_before
        for row, callback in enumerate(callbacks, -stored_before):
            if callback is None:
                continue
            try:
                if row < 0:
                    callback(ok, NO_ID)
                elif is_batch:
                    callback(ok, MessageId(partition, ledger_id, entry_id, row, size))
                else:
                    callback(ok, MessageId(partition, ledger_id, entry_at(entry_id, row)))
            except Exception:
                logger.exception("a send callback raised")


def _shared(column: list[str | None] | None) -> tuple[str | None, list[str | None] | None]:
    """Take the first key for the header, and leave out a column of equal keys."""
    if column is None:
        return None, None
    first = column[0]
    return first, (None if first is not None and column.count(first) == len(column) else column)


def _put(column: list[T | None] | None, row: int, item: T) -> list[T | None]:
    if column is None:
        column = []
    missing = row - len(column)
    if missing:
        column.extend([None] * missing)
    column.append(item)
    return column
