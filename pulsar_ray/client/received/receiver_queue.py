"""The receiver queue: delivered messages that the application has not been handed yet."""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import compress, repeat
from typing import NamedTuple, Protocol

from pulsar_ray.client.acks.unacked_rows import HeldBlock
from pulsar_ray.client.received.message import BlockRows, Message, PlacedRows, Rows, rows_in, set_of
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import PulsarException
from pulsar_ray.lane.progress_page import Counter, CounterName
from pulsar_ray.model.row_ranges import RowFailures
from pulsar_ray.model.row_sets import RowSet, first


class ConsumedCount:
    """Counts the messages that left the queue: handed over, left out, or dropped.

    The consumer's lock guards it. With a `counter` the dispatcher sees the count, also after a crash.
    """

    __slots__ = ("_counter", "consumed", "moving", "reports_until")

    def __init__(self, counter: Counter | None) -> None:
        self._counter = counter
        self.consumed = 0
        """Since the consumer's incarnation began."""
        self.moving = 0
        """Messages on their way to another topic, which do not count as consumed yet.

        Others behind them may have been handed over. So the window bounds what is being moved.
        """
        self.reports_until = 0
        """Up to so many consumed messages each is reported before it is handed over."""

    @property
    def counter_name(self) -> CounterName | None:
        """Where the dispatcher can see the count, None if nowhere."""
        return None if self._counter is None else self._counter.name

    def show(self) -> None:
        """Let the dispatcher see the count as it is now."""
        if (counter := self._counter) is not None:
            counter.write(self.consumed + self.moving)

    def show_each(self, rows: Iterator[int], messages: int) -> Iterator[int]:
        """Show each of the last messages as its row is taken from the result."""
        if (counter := self._counter) is None:
            return rows
        count = self.consumed + self.moving
        first = count - messages + 1
        counter.write(first - 1)
        return compress(rows, map(operator.not_, map(counter.write, range(first, count + 1))))

    def take_back(self, messages: int) -> None:
        """Messages are in the queue again."""
        self.consumed -= messages
        self.show()

    def end_moves(self) -> None:
        """Count what is being moved as consumed, however it ends."""
        self.consumed += self.moving
        self.moving = 0

    def release(self) -> None:
        """Show nothing any more: the consumer has left."""
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.release()


class HandOverTimer(Protocol):
    """Times how long messages are with the application."""

    def handed_over(self, block: ReceivedBlock, rows: Rows) -> None: ...

    def arm(self) -> None: ...

    def note(self, block: ReceivedBlock, rows: Rows) -> None: ...

    def take_back(self, block: ReceivedBlock, rows: Rows) -> None: ...


class UnreadableDeliveries(Protocol):
    """Holds the blocks of one partition that cannot be decoded."""

    topic: str
    partition: int

    def hold(self, delivery: QueuedDelivery) -> bool: ...

    def met(self, delivery: QueuedDelivery, error: PulsarException) -> bool: ...

    def at(self, ledger_id: int, entry_id: int) -> HeldBlock | None: ...

    def stored_bytes(self, delivery: QueuedDelivery) -> bytes: ...


class DeliverySource(Protocol):
    """Deliveries of one partition, as the receiver queue and the consumer above it use them."""

    count: ConsumedCount
    generation: int
    """Seeks and rewinds by now: deliveries of an earlier generation are void."""
    decode: Callable[[QueuedDelivery], ReceivedBlock]

    @property
    def skipped(self) -> object:
        """True while rows before a place in a batch may be left out."""

    @property
    def unreadable(self) -> UnreadableDeliveries | None:
        """Holds blocks that cannot be decoded, where messages are stored."""

    @property
    def ack_timer(self) -> HandOverTimer | None:
        """Times what is handed over, where there is an ack timeout."""

    def send_credit(self, *, always: bool = False) -> None: ...

    def report_consumed(self, may_wait: int = 0) -> None:
        """Show the dispatcher how many messages left the queue.

        Credit is reported when it is due, or `may_wait` messages later.
        """

    def may_repeat(self, redelivery_count: int) -> bool: ...

    def outstanding_rows(self, delivery: QueuedDelivery, block: ReceivedBlock) -> RowSet: ...

    def left_of(self, part: BlockRows) -> BlockRows: ...

    def is_acknowledged(self, delivery: QueuedDelivery) -> bool: ...

    def comes_again(self, delivery: QueuedDelivery, error: PulsarException) -> bool: ...

    def leave_out(self, delivery: QueuedDelivery, error: PulsarException) -> bool: ...

    def pass_deleted(self, delivery: QueuedDelivery, error: PulsarException) -> bool: ...

    def is_deleted(self, delivery: QueuedDelivery) -> bool: ...

    def begin_move(self, delivery: QueuedDelivery) -> None: ...

    def end_move(self, delivery: QueuedDelivery) -> None: ...


class QueuedChunk(NamedTuple):
    """A chunk that stands before the last one of its message.

    Without `data` it is read from the file.
    """

    ledger_id: int
    entry_id: int
    path: str
    offset: int
    length: int
    data: memoryview | None


class QueuedDelivery(NamedTuple):
    """Rows of a block that were delivered and wait in the receiver queue."""

    source: DeliverySource
    generation: int
    ledger_id: int
    path: str
    offset: int
    length: int
    first_entry_id: int
    rows: RowSet
    redelivery_count: int
    data: memoryview | None
    row_failures: RowFailures = ()
    """Of a batch, how often single messages failed before."""
    is_over_limit: bool = False
    """Its messages failed too often: they are moved to the dead letter topic."""
    chunks: Sequence[QueuedChunk] = ()
    """The chunks before this block, if it is the last of a message in several."""
    unread: PulsarException | None = None
    """Why the dispatcher could not read it for this consumer."""

    @property
    def key(self) -> tuple[int, int]:
        """The place of the block: ledger id and first entry id."""
        return self.ledger_id, self.first_entry_id


class Origin(NamedTuple):
    """Where a message came from, so that it can be given back."""

    source: DeliverySource
    generation: int


SLOW_S = 20e-6
"""A program that takes longer for a message pays nothing noticeable for counting each."""


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
        # Of rows that are being handed out and timed: all of them, whose they are, and how many were seen.
        self._timed: BlockRows | None = None
        self._timed_source: DeliverySource | None = None
        self._seen = 0
        self._taken = (0.0, 1)
        """When rows were handed out last, and how many."""
        self.parts: deque[tuple[BlockRows, DeliverySource]] = deque()
        """Rows of decoded blocks, which go before the deliveries."""

    def __bool__(self) -> bool:
        """Whether anything is behind the rows that are being handed out."""
        return bool(self.deliveries or self.parts)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is left."""
        return not (self or operator.length_hint(self._rows))

    @property
    def head(self) -> QueuedDelivery | None:
        """The delivery that is handed out next, if it is not decoded yet."""
        if self.parts or operator.length_hint(self._rows) or not self.deliveries:
            return None
        return self.deliveries[0]

    def is_next(self, delivery: QueuedDelivery) -> bool:
        """Whether a delivery still waits before all others; those that were dropped do not."""
        return bool(self.deliveries) and self.deliveries[0] is delivery

    def take(self, delivery: QueuedDelivery) -> bool:
        """Remove the next delivery, unless it was dropped meanwhile and counts as consumed."""
        deliveries = self.deliveries
        if not deliveries or deliveries[0] is not delivery:
            return False
        deliveries.popleft()
        return True

    def clear(self) -> None:
        """Forget everything."""
        self.messages = iter(())
        self._rows = iter(())
        self._timed = None
        self.parts.clear()
        self.deliveries.clear()

    def add(
        self, block: ReceivedBlock, rows: RowSet, source: DeliverySource, at_once: int
    ) -> tuple[BlockRows, DeliverySource] | None:
        """Queue rows of a decoded block, in parts of `at_once`; take the first part.

        No part may wait in the queue.
        """
        numbers = rows_in(rows)
        if 0 < len(numbers) <= at_once:
            source.count.consumed += len(numbers)
            return BlockRows(block, numbers), source
        for start in range(0, len(numbers), at_once):
            self.parts.append((BlockRows(block, numbers[start : start + at_once]), source))
        return self.next_part()

    def next_part(self) -> tuple[BlockRows, DeliverySource] | None:
        """Take the next part of a decoded block; it counts as consumed.

        Rows that were acknowledged meanwhile are left out, which may be all.
        """
        if not self.parts:
            return None
        part, source = self.parts.popleft()
        source.count.consumed += len(part.rows)
        return source.left_of(part), source

    def put_back(self, part: BlockRows, source: DeliverySource) -> None:
        """Put a part that was taken back in front."""
        self.parts.appendleft((part, source))
        source.count.take_back(len(part.rows))
        if source.ack_timer is not None:
            source.ack_timer.take_back(part.block, part.rows)

    def hand_out(self, part: BlockRows, source: DeliverySource) -> None:
        """Make these rows the next `messages`; none may be left of those before."""
        self._see()
        self._block, self.source = part.block, source
        self._rows = rows = iter(part.rows)
        if self._is_slow(len(part.rows)):
            rows = source.count.show_each(rows, len(part.rows))
        self.messages = map(Message, repeat(part.block), rows)
        self._timed, self._seen = None, 0
        if source.ack_timer is not None:
            self._timed, self._timed_source = part, source
            source.ack_timer.arm()

    def _is_slow(self, messages: int) -> bool:
        """Whether the program takes its time over messages.

        Then each is counted as it is taken. A quick one has acknowledgments of many more on their way than
        are handed out at once.
        """
        now = time.monotonic()
        taken, self._taken = self._taken, (now, messages)
        return now - taken[0] > SLOW_S * taken[1]

    def look(self, source: DeliverySource) -> bool:
        """Time rows of a source that were handed out since the last look.

        Returns whether some are left.
        """
        self._see()
        is_left = operator.length_hint(self._rows) > 0
        return self._timed is not None and self._timed_source is source and is_left

    def _see(self) -> None:
        timed, source = self._timed, self._timed_source
        if timed is None or source is None or source.ack_timer is None:
            return
        end = len(timed.rows) - operator.length_hint(self._rows)
        if end > self._seen:
            source.ack_timer.note(timed.block, timed.rows[self._seen : end])
            self._seen = end

    def return_rest(self) -> None:
        """Put rows that are left of those being handed out back in front."""
        self._see()
        rest = list(self._rows)
        self._timed = None
        if rest and self._block is not None and self.source is not None:
            self.put_back(BlockRows(self._block, rest), self.source)

    def unread_of(self, source: DeliverySource) -> list[QueuedDelivery]:
        """Return the deliveries of a source that have still to be read from files."""
        return [
            each for each in self.deliveries if each.source is source and each.data is None and each.length
        ]

    def replace(self, others: Mapping[int, QueuedDelivery]) -> None:
        """Put others in place of deliveries that still wait, by what `id` says of these."""
        self.deliveries = deque(others.get(id(delivery), delivery) for delivery in self.deliveries)

    def take_all(self, source: DeliverySource) -> list[PlacedRows]:
        """Remove and return all rows of a source; they count as consumed."""
        taken = [(*delivery.key, delivery.rows) for delivery in self.deliveries if delivery.source is source]
        self.deliveries = deque(delivery for delivery in self.deliveries if delivery.source is not source)
        taken += [_held(part) for part, owner in self.parts if owner is source]
        self.parts = deque(item for item in self.parts if item[1] is not source)
        source.count.consumed += sum(rows.bit_count() for _, _, rows in taken)
        if self.source is source:
            self._see()
            rest = list(self._rows)
            self._timed = None
            if rest and self._block is not None:
                taken.append(_held(BlockRows(self._block, rest)))
        return taken

    def take_from(self, delivery: QueuedDelivery) -> list[PlacedRows]:
        """Remove a delivery that waits and all of its source behind it, as `take_all`."""
        source, is_behind = delivery.source, False
        taken: list[PlacedRows] = []
        kept: deque[QueuedDelivery] = deque()
        for each in self.deliveries:
            is_behind = is_behind or each is delivery
            if is_behind and each.source is source:
                taken.append((*each.key, each.rows))
            else:
                kept.append(each)
        self.deliveries = kept
        source.count.consumed += sum(rows.bit_count() for _, _, rows in taken)
        return taken

    def repeats_of(self, source: DeliverySource) -> list[PlacedRows]:
        """Rows of a source that wait, and may have been handed out before."""
        may_repeat = source.may_repeat
        found = [
            (*delivery.key, delivery.rows)
            for delivery in self.deliveries
            if delivery.source is source and may_repeat(delivery.redelivery_count)
        ]
        parts = (part for part, owner in self.parts if owner is source)
        return found + [_held(part) for part in parts if may_repeat(part.block.redelivery_count)]

    def left_of(self, source: DeliverySource) -> int:
        """Messages of a source that count as consumed and were not taken yet."""
        return operator.length_hint(self._rows) if self.source is source else 0

    def oldest_of(self, source: DeliverySource) -> tuple[int, int, int] | None:
        """The first message of a source in the queue.

        Returns (ledger id, first entry id of its block, row), or None.
        """
        waiting = [
            (*delivery.key, first(delivery.rows)) for delivery in self.deliveries if delivery.source is source
        ]
        parts = [part for part, owner in self.parts if owner is source]
        if self.source is source and self._block is not None:
            parts.append(BlockRows(self._block, list(copy(self._rows))))
        waiting += [(block.ledger_id, block.first_entry_id, rows[0]) for block, rows in parts if rows]
        return min(waiting, default=None)

    def messages_of(self, source: DeliverySource) -> int:
        """Messages of a source that do not count as consumed yet."""
        waiting = sum(delivery.rows.bit_count() for delivery in self.deliveries if delivery.source is source)
        return waiting + sum(len(part.rows) for part, owner in self.parts if owner is source)


def _held(part: BlockRows) -> PlacedRows:
    block, rows = part
    return block.ledger_id, block.first_entry_id, set_of(rows)
