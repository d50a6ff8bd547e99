"""Received messages: rows of a received block, and lists of messages made lazily."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, overload

from pulsar_ray.client.received.block_rows import BlockRows
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.message_id import MessageId, entry_at


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
        """The payload decoded by the consumer's schema; None for a tombstone."""
        data = self.block.values[self.row]
        return None if data is None else self.block.schema.decode(data)

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
