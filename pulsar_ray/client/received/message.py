"""Received messages: rows of a received block, and lists of messages made lazily."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from pulsar_ray.client.options.schema import BytesSchema, Schema
from pulsar_ray.client.schemas.readings import WrittenValues
from pulsar_ray.errors import SchemaSerializationException
from pulsar_ray.format.block import ARROW, ROW_IS_ENTRY
from pulsar_ray.format.payload import DecodedBlock
from pulsar_ray.model import row_sets
from pulsar_ray.model.message_id import MessageId, entry_at
from pulsar_ray.model.row_ranges import RowFailures, RowRanges
from pulsar_ray.model.row_sets import RowSet

_BYTES_SCHEMA = BytesSchema()


class ReceivedBlock:
    """The messages of one block, column by column.

    The lists (`values`, `keys`, ...) have one item per row of the whole block, also for rows that were not
    delivered, and are made when first asked for; None stands for a column that no message has.
    """

    __slots__ = (
        "decoded",
        "event_times",
        "first_chunk",
        "first_entry_id",
        "first_sequence_id",
        "is_batch",
        "keys",
        "ledger_id",
        "message_count",
        "ordering_keys",
        "partition",
        "producer_name",
        "properties",
        "publish_time_ms",
        "redelivery_count",
        "row_failures",
        "schema",
        "schema_version",
        "sequence_ids",
        "topic_name",
        "values",
    )

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
        self.publish_time_ms = header.publish_time_ms
        self.first_sequence_id = header.first_sequence_id
        self.first_chunk: tuple[int, int] | None = None
        """Ledger and entry of the first chunk, if it is a message in several."""
        self.producer_name = decoded.metadata.producer_name or ""
        self.schema_version = decoded.metadata.schema_version or b""

    def __getattr__(self, name: str) -> Any:
        # Only reached while a column's slot is empty: fills it, so that later reads cost no call.
        make = _COLUMNS.get(name)
        if make is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        column = make(self.decoded)
        setattr(self, name, column)
        return column

    def failures_of(self, row: int) -> int:
        """How often this very message failed before.

        Of a batch `redelivery_count` is how often any of its messages did.
        """
        if not self.is_batch or self.message_count == 1:
            return self.redelivery_count
        return next((count for first, end, count in self.row_failures if first <= row < end), 0)

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


_COLUMNS: dict[str, Callable[[DecodedBlock], Any]] = {
    "values": DecodedBlock.values,
    "keys": DecodedBlock.keys,
    "ordering_keys": DecodedBlock.ordering_keys,
    "properties": DecodedBlock.properties,
    "event_times": DecodedBlock.event_times,
    "sequence_ids": DecodedBlock.sequence_ids,
}


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
        data = self.block.values[self.row]
        if data is None:
            return None
        try:
            return self.block.schema.decode(data)
        except SchemaSerializationException as error:
            raise error.of_message(self.message_id()) from error.__cause__

    def has_null_value(self) -> bool:
        """Whether this is a tombstone, which an empty payload is not."""
        return self.block.values[self.row] is None

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
        """How often its entry was delivered before."""
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

    def encryption_context(self) -> object | None:
        """None: messages are not encrypted yet."""
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.row == other.row and self.block is other.block

    def __hash__(self) -> int:
        return hash((id(self.block), self.row))

    def __repr__(self) -> str:
        return f"Message({self.message_id()} of {self.block.topic_name})"


class MessageBatchView(Sequence[Message]):
    """Messages in order, whose objects are made when looked at and not kept.

    Thousands of live objects would be work for the garbage collector at every step. `acknowledge` takes it
    whole by its `parts`, without making any object.
    """

    __slots__ = ("_ends", "parts")

    def __init__(self, parts: Iterable[BlockRows]) -> None:
        self.parts = [part for part in parts if part.rows]
        self._ends = list(accumulate(len(part.rows) for part in self.parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        count = len(self)
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(count))]
        place = index + count if index < 0 else index
        if not 0 <= place < count:
            raise IndexError(f"message {index} of {count}")
        part = bisect_right(self._ends, place)
        block, rows = self.parts[part]
        return Message(block, rows[place - self._ends[part]])

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(map(Message, repeat(block), rows) for block, rows in self.parts)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (MessageBatchView, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"MessageBatchView({len(self)} messages)"
