"""Redelivery: messages that failed, timed out, or were left behind come again.

A failure (negative ack, ack timeout, redeliver_unacknowledged, a crash that is its fault) raises the
redelivery count; going away does not. A batch comes back whole, without what was acknowledged durably;
which of its messages failed is counted by row, so that its neighbours are never blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, Delivery, DispatchBlock, Key, SuspectGroup
from pulsar_ray.dispatch.returning_consumers import ReturningConsumers
from pulsar_ray.dispatch.subscription_types.subscription_type import SubscriptionType
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.model import row_ranges, row_sets
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import RowSet

NackItem = tuple[int, int, RowRanges, int]
"""(ledger id, entry id in a block, rows counted from there, redelivery count).

No rows are the whole entry; a redelivery count below 0 stands for the one the consumer has.
"""


class ConsumerQueue(NamedTuple):
    """How far a consumer's queue is.

    `received` is the number of the last delivery that has arrived there, `oldest` its first message that the
    application has not been given, as (ledger id, first entry id, row). `had_received` is the last delivery
    that had arrived when the consumer first named the failed messages.
    """

    received: int
    oldest: tuple[int, int, int] | None
    had_received: int = 1 << 62


EMPTY_QUEUE = ConsumerQueue(1 << 62, None)
"""Everything has arrived, and the application was given all of it."""


class Redelivery:
    """Moves deliveries back to where they wait."""

    def __init__(self, cursor: ManagedCursor, blocks: DispatchBlocks) -> None:
        self._cursor = cursor
        self._blocks = blocks

    def negative_acknowledge(
        self, consumer: Consumer, items: Iterable[NackItem], had_received: int
    ) -> tuple[DispatchBlock, int] | None:
        """Let messages come again that failed; returns the lowest block and row of them.

        An item that refers to another redelivery count than the pending one is stale and has no effect, nor
        has one without a count on what was granted behind delivery number `had_received`. (If the dispatcher
        dies before it has answered, one without a count may count twice: nobody can tell.)
        But of what was granted before a restart the predecessor may have counted this failure and died before
        the message came again, which it does now; or died before its counts were durable.
        """
        lowest: tuple[DispatchBlock, int] | None = None
        for ledger_id, entry_id, rows, count in items:
            block = self._blocks.index.find(ledger_id, entry_id)
            if block is None:
                continue
            offset = entry_id - block.ref.first_entry_id if block.ref.row_is_entry else 0
            rows = row_ranges.union((), rows) or ((0, 1 if block.ref.row_is_entry else block.ref.messages),)
            # A client may name rows that there are not, however high.
            rows = row_ranges.intersect(rows, row_ranges.all_rows(block.ref.messages - offset))
            named = row_sets.of_ranges(rows) << offset
            for delivery in tuple(block.deliveries):
                failed = delivery.rows & named
                if delivery.consumer is not consumer or not failed:
                    continue
                if count < 0 and delivery.number > had_received:
                    continue
                if count < 0 or count == delivery.count:
                    self._fail(delivery, failed)
                elif not delivery.is_from_before:
                    continue
                elif count < delivery.count:
                    self._take_back(delivery, failed)
                else:
                    self._fail(delivery, failed)
                first = 0 if block.ref.is_batch else row_sets.first(failed)
                if lowest is None or (block.key, first) < (lowest[0].key, lowest[1]):
                    lowest = block, first
        return lowest

    def rewind(self, consumer: Consumer, block: DispatchBlock, row: int, queue: ConsumerQueue) -> None:
        """Take back everything pending from this row on, to come again in order, unfailed.

        The consumer drops what waits in its queue and what is on its way. After an earlier failure some of
        that may lie before this row: then everything from there on comes again.
        """
        start = (*block.key, row)
        for delivery in consumer.deliveries:
            if delivery.number > queue.received:
                start = min(start, (*delivery.block.key, row_sets.first(delivery.rows)))
        if queue.oldest is not None:
            start = min(start, queue.oldest)
        for delivery in tuple(consumer.deliveries):
            key = delivery.block.key
            if key > start[:2] or (key == start[:2] and delivery.block.is_batch):
                self.give_back(delivery)
            elif key == start[:2]:
                later = delivery.rows >> start[2] << start[2]
                if later == delivery.rows:
                    self.give_back(delivery)
                elif later:
                    self._blocks.settle(delivery, later)
                    self._blocks.put_back(delivery.block, later, delivery.count)

    def redeliver(self, consumer: Consumer, through: int | None, handed_over: int | None) -> None:
        """Take back deliveries up to number `through` (None: all).

        Messages that the application had been given have failed, the rest of the consumer's queue has not.
        """
        for delivery in tuple(consumer.deliveries):
            if through is None or delivery.number <= through:
                self.give_back(delivery, delivery.handed_over_rows(handed_over))

    def give_up(self, consumer: Consumer) -> None:
        """Take back everything of a consumer that is gone; suspects stay what they are."""
        for delivery in tuple(consumer.deliveries):
            self.give_back(delivery, suspects=delivery.rows, group=delivery.group)

    def give_back(
        self,
        delivery: Delivery,
        failed: RowSet = 0,
        suspects: RowSet = 0,
        group: SuspectGroup | None = None,
    ) -> None:
        """End a delivery; all its rows wait again, the failed ones with a higher count.

        Of `suspects` those wait with a group that there is one for.
        """
        self.give_back_suspects(delivery, failed, () if group is None else ((suspects, group),))

    def give_back_suspects(
        self, delivery: Delivery, failed: RowSet, suspects: Sequence[tuple[RowSet, SuspectGroup]]
    ) -> None:
        """End a delivery; its rows wait again, some of them as suspects of groups."""
        block, count = delivery.block, delivery.count
        is_part = bool(suspects) or delivery.is_part
        rows = self._blocks.end(delivery)
        if block.ref.is_batch:
            rows, count = self._given_back_of_batch(block, failed, is_part=is_part)
        elif failed:
            self._count(block, failed, count + 1)
        for part, of_group in (*suspects, (rows, None)):
            part &= rows
            rows ^= part
            if failed and not block.ref.is_batch:
                self._blocks.put_back(block, part & failed, count + 1, of_group)
                part &= ~failed
            self._blocks.put_back(block, part, count, of_group)

    def _fail(self, delivery: Delivery, failed: RowSet) -> None:
        block = delivery.block
        if block.ref.is_batch or failed == delivery.rows:
            self.give_back(delivery, failed)
            return
        self._blocks.settle(delivery, failed)
        self._count(block, failed, delivery.count + 1)
        self._blocks.put_back(block, failed, delivery.count + 1)

    def _take_back(self, delivery: Delivery, rows: RowSet) -> None:
        if delivery.block.ref.is_batch or rows == delivery.rows:
            self.give_back(delivery)
            return
        self._blocks.settle(delivery, rows)
        self._blocks.put_back(delivery.block, rows, delivery.count)

    def _given_back_of_batch(
        self, block: DispatchBlock, failed: RowSet, *, is_part: bool
    ) -> tuple[RowSet, int]:
        """Return the rows of a batch that are to wait again, and their redelivery count."""
        position = Position(*block.key)
        count = self._cursor.counts.of(*block.key)
        if failed:
            count += 1
            self._cursor.count_redelivery(*block.key, block.ref.first_entry_id, count)
            self._cursor.count_row_failures(position, row_sets.ranges_of(failed))
        # Suspects come in parts, to several clients, of which none knows the acknowledgments of the others.
        known = self._cursor.acknowledged_rows if is_part else self._cursor.durable_rows
        rows = block.ref.all_rows & ~row_sets.of_ranges(known(position))
        return self._blocks.nowhere(block, rows), count

    def _count(self, block: DispatchBlock, rows: RowSet, count: int) -> None:
        ref = block.ref
        if not ref.row_is_entry:
            rows = 1
        first = ref.first_entry_id
        for a, b in row_sets.ranges_of(rows):
            self._cursor.count_redelivery(ref.ledger_id, first + a, first + b - 1, count)


class _Deferred(NamedTuple):
    """A request that waits until what its consumer holds from before a restart was read."""

    incarnation: int
    items: list[NackItem]
    queue: ConsumerQueue
    through: int | None
    handed_over: int | None = None
    is_repeat: bool = False
    unreadable: Key | None = None


class RedeliveryRequests:
    """Carries out what consumers want redelivered.

    Methods return whether an ordered subscription went back: then queues must go.
    """

    def __init__(
        self,
        redelivery: Redelivery,
        returning: ReturningConsumers,
        consumers: Mapping[int, Consumer],
        kind: SubscriptionType,
        blocks: DispatchBlocks,
    ) -> None:
        self._redelivery = redelivery
        self._returning = returning
        self._consumers = consumers
        self._type = kind
        self._blocks = blocks
        self.deferred: list[_Deferred] = []
        """Requests that wait for blocks to be read."""

    def negative_acknowledge(self, incarnation: int, items: Iterable[NackItem], queue: ConsumerQueue) -> bool:
        """Let messages come again that failed; on an ordered subscription also what came after them."""
        consumer = self._consumers.get(incarnation)
        if consumer is None:
            return False
        if self._returning.has_claims(incarnation):
            self.deferred.append(_Deferred(incarnation, list(items), queue, None))
            return False
        lowest = self._redelivery.negative_acknowledge(consumer, items, queue.had_received)
        if lowest is None or not self._type.policy.is_ordered:
            return False
        self._redelivery.rewind(consumer, *lowest, queue)
        return True

    def redeliver(
        self, incarnation: int, through: int, handed_over: int | None, *, is_repeat: bool = False
    ) -> bool:
        """Let everything come again up to number `through`; on an ordered subscription all.

        A repeat, which was sent before queues were dropped last, may have been carried out.
        """
        consumer = self._consumers.get(incarnation)
        active = self._type.policy.active
        if consumer is None or (active is not None and consumer is not active):
            # One that stands by has nothing, and the queue of the active one must stay as it is.
            return False
        if self._returning.has_claims(incarnation):
            self.deferred.append(_Deferred(incarnation, [], EMPTY_QUEUE, through, handed_over, is_repeat))
            return False
        is_ordered = self._type.policy.is_ordered
        if is_ordered and is_repeat and all(delivery.number > through for delivery in consumer.deliveries):
            return False
        self._redelivery.redeliver(consumer, None if is_ordered else through, handed_over)
        return is_ordered

    def cannot_read(self, incarnation: int, place: Key) -> None:
        """Count a block for one message that its consumer cannot decode."""
        consumer, block = self._consumers.get(incarnation), self._blocks.index.get(place)
        if consumer is None:
            return
        if block is not None:
            self._blocks.count_as_one(consumer, block)
        elif self._returning.is_claimed(incarnation, place):
            self.deferred.append(_Deferred(incarnation, [], EMPTY_QUEUE, None, unreadable=place))

    def retry(self) -> Iterator[int]:
        """Blocks were read: do what waited for them; yields the consumers whose queues must go."""
        deferred, self.deferred = self.deferred, []
        for incarnation, items, queue, through, handed_over, is_repeat, unreadable in deferred:
            if unreadable is not None:
                self.cannot_read(incarnation, unreadable)
                continue
            if through is None:
                has_gone_back = self.negative_acknowledge(incarnation, items, queue)
            else:
                has_gone_back = self.redeliver(incarnation, through, handed_over, is_repeat=is_repeat)
            if has_gone_back:
                yield incarnation

    def clear(self) -> None:
        """Everything starts over."""
        self.deferred.clear()
