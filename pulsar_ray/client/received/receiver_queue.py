"""The receiver queue: delivered messages that the application has not been handed yet."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator
from copy import copy
from itertools import repeat

from pulsar_ray.client.received.block_rows import BlockRows, PlacedRows, rows_in, set_of
from pulsar_ray.client.received.message import Message
from pulsar_ray.client.received.queued_delivery import DeliverySource, QueuedDelivery
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.row_sets import RowSet, first


class ReceiverQueue:
    """Holds the rows being handed out, then parts of decoded blocks, then deliveries.

    The consumer's lock guards it, with one exception: any thread may take the next of `messages`. Rows that
    are being handed out count as consumed at their source.
    """

    def __init__(self) -> None:
        self.messages: Iterator[Message] = iter(())
        """The messages being handed out.

        The iterator steps in C over a list or range, so that no lock is needed.
        """
        self.source: DeliverySource | None = None
        """The partition whose messages are being handed out."""
        self.deliveries: deque[QueuedDelivery] = deque()
        self._block: ReceivedBlock | None = None
        self._rows: Iterator[int] = iter(())
        self._parts: deque[tuple[BlockRows, DeliverySource]] = deque()

    def __bool__(self) -> bool:
        """Whether anything is behind the rows that are being handed out."""
        return bool(self.deliveries or self._parts)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is left."""
        return not (self or operator.length_hint(self._rows))

    @property
    def head(self) -> QueuedDelivery | None:
        """The delivery that is handed out next, if it is not decoded yet."""
        if self._parts or operator.length_hint(self._rows) or not self.deliveries:
            return None
        return self.deliveries[0]

    def clear(self) -> None:
        """Forget everything."""
        self.messages = iter(())
        self._rows = iter(())
        self._parts.clear()
        self.deliveries.clear()

    def add(
        self, block: ReceivedBlock, rows: RowSet, source: DeliverySource, at_once: int
    ) -> tuple[BlockRows, DeliverySource] | None:
        """Queue rows of a decoded block, in parts of `at_once`; take the first part.

        No part may wait in the queue.
        """
        numbers = rows_in(rows)
        if 0 < len(numbers) <= at_once:
            source.consumed += len(numbers)
            return BlockRows(block, numbers), source
        for start in range(0, len(numbers), at_once):
            self._parts.append((BlockRows(block, numbers[start : start + at_once]), source))
        return self.next_part()

    def next_part(self) -> tuple[BlockRows, DeliverySource] | None:
        """Take the next part of a decoded block; it counts as consumed."""
        if not self._parts:
            return None
        part, source = self._parts.popleft()
        source.consumed += len(part.rows)
        return part, source

    def put_back(self, part: BlockRows, source: DeliverySource) -> None:
        """Put a part that was taken back in front."""
        self._parts.appendleft((part, source))
        source.consumed -= len(part.rows)

    def hand_out(self, part: BlockRows, source: DeliverySource) -> None:
        """Make these rows the next `messages`; none may be left of those before."""
        self._block, self.source = part.block, source
        self._rows = iter(part.rows)
        self.messages = map(Message, repeat(part.block), self._rows)

    def return_rest(self) -> None:
        """Put rows that are left of those being handed out back in front."""
        rest = list(self._rows)
        if rest and self._block is not None and self.source is not None:
            self.put_back(BlockRows(self._block, rest), self.source)

    def take_all(self, source: DeliverySource) -> list[PlacedRows]:
        """Remove and return all rows of a source; they count as consumed."""
        taken = [(*delivery.key, delivery.rows) for delivery in self.deliveries if delivery.source is source]
        self.deliveries = deque(delivery for delivery in self.deliveries if delivery.source is not source)
        taken += [_held(part) for part, owner in self._parts if owner is source]
        self._parts = deque(item for item in self._parts if item[1] is not source)
        source.consumed += sum(rows.bit_count() for _, _, rows in taken)
        if self.source is source:
            rest = list(self._rows)
            if rest and self._block is not None:
                taken.append(_held(BlockRows(self._block, rest)))
        return taken

    def oldest_of(self, source: DeliverySource) -> tuple[int, int, int] | None:
        """The first message of a source in the queue.

        Returns (ledger id, first entry id of its block, row), or None.
        """
        waiting = [
            (*delivery.key, first(delivery.rows)) for delivery in self.deliveries if delivery.source is source
        ]
        parts = [part for part, owner in self._parts if owner is source]
        if self.source is source and self._block is not None:
            parts.append(BlockRows(self._block, list(copy(self._rows))))
        waiting += [(block.ledger_id, block.first_entry_id, rows[0]) for block, rows in parts if rows]
        return min(waiting, default=None)

    def messages_of(self, source: DeliverySource) -> int:
        """Messages of a source that do not count as consumed yet."""
        waiting = sum(delivery.rows.bit_count() for delivery in self.deliveries if delivery.source is source)
        return waiting + sum(len(part.rows) for part, owner in self._parts if owner is source)


def _held(part: BlockRows) -> PlacedRows:
    block, rows = part
    return block.ledger_id, block.first_entry_id, set_of(rows)
