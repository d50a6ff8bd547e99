"""Holds the messages of one block, as a consumer received them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pulsar_ray.client.encryption.encryption_context import EncryptionContext
from pulsar_ray.client.options.schema import BytesSchema, Schema
from pulsar_ray.client.schemas.readings import Unreadable, WrittenValues
from pulsar_ray.format.block import ARROW, ROW_IS_ENTRY
from pulsar_ray.format.payload import DecodedBlock
from pulsar_ray.model.row_ranges import RowFailures

_BYTES_SCHEMA = BytesSchema()


class ReceivedBlock:
    """The messages of one block, column by column.

    The lists (`values`, `keys`, ...) have one item per row of the whole block, also for rows that were not
    delivered, and are made when first asked for; None stands for a column that no message has.
    """

    values: list[bytes | None]
    keys: list[str | None] | None
    ordering_keys: list[str | None] | None
    properties: list[dict[str, str]] | None
    event_times: list[int | None] | None
    sequence_ids: list[int]
    decoded: DecodedBlock

    def __init__(
        self,
        decoded: DecodedBlock,
        *,
        topic_name: str,
        partition: int,
        ledger_id: int,
        first_entry_id: int,
        redelivery_count: int = 0,
        row_failures: RowFailures = (),
        schema: Schema | WrittenValues = _BYTES_SCHEMA,
    ) -> None:
        header = decoded.header
        self.decoded = decoded
        self.topic_name = topic_name
        self.partition = partition
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.redelivery_count = redelivery_count
        self.row_failures = row_failures
        self.schema = schema
        self.message_count = header.message_count
        # A batch is one entry whose messages have batch indexes; else every row is an entry of its own.
        self.is_batch = header.payload_format == ARROW and not header.flags & ROW_IS_ENTRY
        self.is_columnar = decoded.is_columnar
        self.typed_values: list[Any] | None = None
        """Of rows that share columns, once one of them is asked for."""
        self.publish_time_ms = header.publish_time_ms
        self.first_sequence_id = header.first_sequence_id
        self.first_chunk: tuple[int, int] | None = None
        """Ledger and entry of the first chunk, if it is a message in several."""
        self.producer_name = decoded.metadata.producer_name or ""
        self.schema_version = decoded.metadata.schema_version or b""

    def value_of_row(self, row: int) -> Any:
        """Return the value of a row that shares columns with others; None for a tombstone.

        Raises SchemaSerializationException for one that does not fit.
        """
        if self.typed_values is None:
            self.typed_values = self.schema.values_of_rows(self.decoded)
        value = self.typed_values[row]
        if isinstance(value, Unreadable):
            raise value.error.again()
        return value

    def failures_of(self, row: int) -> int:
        """How often this very message failed before.

        Of a batch `redelivery_count` is how often any of its messages did.
        """
        if not self.is_batch or self.message_count == 1:
            return self.redelivery_count
        return next((count for first, end, count in self.row_failures if first <= row < end), 0)

    def encryption_context(self) -> EncryptionContext | None:
        """Say how it was encrypted; None if it was not."""
        decoded = getattr(self, "decoded", None)  # there is none of an outgoing message
        if decoded is None or (info := decoded.metadata.encryption) is None:
            return None
        header = decoded.undecrypted or decoded.header
        return EncryptionContext(info, header, is_decrypted=decoded.undecrypted is None)

    @classmethod
    def outgoing(
        cls,
        topic_name: str,
        value: bytes | None,
        *,
        producer_name: str = "",
        key: str | None = None,
        ordering_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        publish_time_ms: int = 0,
    ) -> ReceivedBlock:
        """One message that is not stored yet, for a custom router.

        Its id is (-1,-1,-1,-1).
        """
        block = cls.__new__(cls)
        block.topic_name = topic_name
        block.partition = -1
        block.ledger_id = -1
        block.first_entry_id = -1
        block.redelivery_count = 0
        block.row_failures = ()
        block.schema = _BYTES_SCHEMA
        block.message_count = 1
        block.is_batch = False
        block.is_columnar = False
        block.typed_values = None
        block.publish_time_ms = publish_time_ms
        block.first_chunk = None
        block.first_sequence_id = -1
        block.producer_name = producer_name
        block.schema_version = b""
        block.values = [value]
        block.keys = [key]
        block.ordering_keys = [ordering_key]
        block.properties = [dict(properties or {})]
        block.event_times = [event_time]
        block.sequence_ids = [-1]
        return block


class _LazyColumn:
    """Makes a column at the first look at it, which gives it to the block."""

    def __init__(self, name: str, make: Callable[[DecodedBlock], Any]) -> None:
        self._name = name
        self._make = make

    def __get__(self, block: ReceivedBlock, _: type) -> Any:
        column = self._make(block.decoded)
        # The block's own attribute goes before this one. Set by `__dict__`, it would cost a dictionary more.
        setattr(block, self._name, column)
        return column


for _make in (
    DecodedBlock.values,
    DecodedBlock.keys,
    DecodedBlock.ordering_keys,
    DecodedBlock.properties,
    DecodedBlock.event_times,
    DecodedBlock.sequence_ids,
):
    setattr(ReceivedBlock, _make.__name__, _LazyColumn(_make.__name__, _make))
