"""Received messages: rows of a received block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pulsar_ray.client.encryption.encryption_context import EncryptionContext
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import SchemaSerializationException
from pulsar_ray.inheritable import mypyc_attr
from pulsar_ray.model import row_sets
from pulsar_ray.model.message_id import MessageId, entry_at
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import RowSet

T = TypeVar("T")

Rows: TypeAlias = "range | list[int]"
"""Row numbers in ascending order; neighbouring ones are a range."""
PlacedRows: TypeAlias = tuple[int, int, RowSet]
"""(ledger id, first entry id of the block, rows)."""


class BlockRows(NamedTuple):
    """Rows of one block."""

    block: ReceivedBlock
    rows: Rows


def rows_in(rows: RowSet) -> Rows:
    """The rows of a set."""
    if not rows & (rows + 1):  # from the first row on, as nearly always
        return range(rows.bit_length())
    if row_sets.is_range(rows):
        return range(row_sets.first(rows), rows.bit_length())
    numbers: list[int] = row_sets.numbers_of(rows).tolist()
    return numbers


def set_of(rows: Rows) -> RowSet:
    """The rows as a set."""
    return row_sets.of_ranges(ranges_of(rows))


def ranges_of(rows: Rows) -> RowRanges:
    """The ranges of rows."""
    if not rows:
        return ()
    first, end = rows[0], rows[-1] + 1
    if end - first == len(rows):
        return ((first, end),)
    numbers = row_numbers(rows)
    cuts = np.flatnonzero(np.diff(numbers) != 1)
    firsts = [first, *numbers[cuts + 1].tolist()]
    ends = [*(numbers[cuts] + 1).tolist(), end]
    return tuple(zip(firsts, ends, strict=True))


def row_numbers(rows: Rows) -> NDArray[np.int64]:
    """The rows as an array."""
    if isinstance(rows, range):
        return np.arange(rows.start, rows.stop, dtype=np.int64)
    return np.array(rows, dtype=np.int64)


def items_of(column: Sequence[T], rows: Rows) -> list[T]:
    """The items of a column in these rows."""
    if isinstance(rows, range):
        return list(column[rows.start : rows.stop])
    return [column[row] for row in rows]


@mypyc_attr(allow_interpreted_subclasses=True)
class Message:
    """One received message, a `row` of a `block`.

    It keeps its whole block in memory, so copy what you mean to keep for long. `block` and `row` are not part
    of the official client.
    """

    __slots__ = ("block", "row")

    def __init__(self, block: ReceivedBlock, row: int) -> None:
        self.block = block
        self.row = row

    def data(self) -> bytes:
        """The payload; b"" for a tombstone."""
        return self.block.values[self.row] or b""

    def value(self) -> Any:
        """The payload decoded by the consumer's schema; None for a tombstone.

        Its writer's version of the schema is heeded.

        Raises SchemaSerializationException for one that does not fit. The message can be acknowledged.
        """
        block = self.block
        data = None if block.is_columnar else block.values[self.row]
        if data is None and not block.is_columnar and not block.schema.takes_keys:
            return None
        try:
            if block.schema.takes_keys and not block.is_columnar:
                is_encoded = bool(block.schema_version)
                return block.schema.decode_pair(data, self.partition_key() or None, is_encoded=is_encoded)
            return block.value_of_row(self.row) if data is None else block.schema.decode(data)
        except SchemaSerializationException as error:
            raise error.of_message(self.message_id()) from error.__cause__

    def has_null_value(self) -> bool:
        """Whether this is a tombstone, which an empty payload is not."""
        block = self.block
        return (
            not block.decoded.rows()[self.row].is_valid
            if block.is_columnar
            else block.values[self.row] is None
        )

    def properties(self) -> dict[str, str]:
        column = self.block.properties
        return {} if column is None else dict(column[self.row])

    def partition_key(self) -> str:
        """The key; "" if there is none."""
        column = self.block.keys
        return "" if column is None else column[self.row] or ""

    def ordering_key(self) -> str:
        """The ordering key; "" if there is none."""
        column = self.block.ordering_keys
        return "" if column is None else column[self.row] or ""

    def publish_timestamp(self) -> int:
        """When the producer sent it, in ms since 1970; messages of a batch share one."""
        return self.block.publish_time_ms

    def event_timestamp(self) -> int:
        """The time the sender gave it, in ms since 1970; 0 if none."""
        column = self.block.event_times
        return 0 if column is None else column[self.row] or 0

    def message_id(self) -> MessageId:
        """The place where it is stored, and its topic.

        So it can be acknowledged by its id on a consumer of several topics, too.
        """
        block = self.block
        if block.is_batch:
            return MessageId(
                block.partition,
                block.ledger_id,
                block.first_entry_id,
                self.row,
                block.message_count,
                block.topic_name,
            )
        if block.first_chunk is not None:
            first = MessageId(block.partition, *block.first_chunk, topic_name=block.topic_name)
            place = block.partition, block.ledger_id, block.first_entry_id
            return MessageId(*place, topic_name=block.topic_name, first_chunk=first)
        return MessageId(
            block.partition,
            block.ledger_id,
            entry_at(block.first_entry_id, self.row),
            topic_name=block.topic_name,
        )

    def topic_name(self) -> str:
        """The full name of the topic; of the partition if there are several."""
        return self.block.topic_name

    def redelivery_count(self) -> int:
        """How often its entry failed before."""
        return self.block.redelivery_count

    @property
    def failures(self) -> int:
        """How often this very message failed; not part of the official client.

        It failed if it was acknowledged negatively or timed out, or if its consumer crashed over it.
        """
        return self.block.failures_of(self.row)

    def schema_version(self) -> str:
        """The version's 8 bytes, a character each; "" without a schema."""
        return self.block.schema_version.decode("latin-1")

    def producer_name(self) -> str:
        return self.block.producer_name

    def encryption_context(self) -> EncryptionContext | None:
        """How it was encrypted; None if it was not."""
        return self.block.encryption_context()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.row == other.row and self.block is other.block

    def __hash__(self) -> int:
        return hash((id(self.block), self.row))

    def __repr__(self) -> str:
        return f"Message({self.message_id()} of {self.block.topic_name})"
