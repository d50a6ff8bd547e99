"""Every block between being read and being acknowledged: where each of its rows is.

A row that is not acknowledged is pending at a consumer, waits to be dispatched, or waits as a suspect.
Everything works on blocks and sets of their rows, never on a row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from sortedcontainers import SortedDict

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.blocks.chunk_groups import ChunkGroups
from pulsar_ray.dispatch.blocks.counted_rows import CountedRows
from pulsar_ray.dispatch.consumer import Consumer, Delivery, DispatchBlock, Key, SuspectGroup
from pulsar_ray.dispatch.suspects.groups import SuspectGroups
from pulsar_ray.managed_ledger.cursor.managed_cursor import SuspectRows
from pulsar_ray.model.row_sets import RowSet

_LEAST_STALE = 64


class BlockIndex(dict[Key, DispatchBlock]):
    """Blocks by key, the lowest first.

    They come in order, but for delayed ones that are due, and go in any.

    So a sorted list of keys mostly grows at its end. Keys of blocks that have gone stay there until
    they are half of the list: adding and deleting cost next to nothing, searching one bisection.
    """

    __slots__ = ("_head", "_is_in_order", "_keys")

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Key] = []
        self._head = 0  # everything before it has gone
        self._is_in_order = True  # the dict's own order is that of the keys

    def add(self, block: DispatchBlock) -> None:
        """A block behind all that were there since `clear`."""
        keys = self._keys
        if keys and block.key <= keys[-1]:
            self.insert(block)  # one that was due has come before its turn
            return
        self[block.key] = block
        keys.append(block.key)
        if len(keys) > 2 * len(self) + _LEAST_STALE:
            self._clean()

    def insert(self, block: DispatchBlock) -> None:
        """A block anywhere, also one that was here before and has gone."""
        keys, key = self._keys, block.key
        at = bisect_left(keys, key)
        if at == len(keys) or keys[at] != key:
            keys.insert(at, key)
        self._head = min(self._head, at)
        self._is_in_order = False
        self[key] = block
        if len(keys) > 2 * len(self) + _LEAST_STALE:
            self._clean()

    def _clean(self) -> None:
        """Forget the keys of blocks that have gone."""
        self._keys = list(self) if self._is_in_order else sorted(self)
        self._head = 0

    def clear(self) -> None:
        """Forget all; any may come next."""
        super().clear()
        self._keys.clear()
        self._head = 0
        self._is_in_order = True

    def find(self, ledger_id: int, entry_id: int) -> DispatchBlock | None:
        """The block that holds an entry."""
        block = self.get((ledger_id, entry_id))
        if block is None and (index := bisect_right(self._keys, (ledger_id, entry_id))):
            # If the last one that begins below it has gone, no other holds it either.
            block = self.get(self._keys[index - 1])
            if block is None or block.ref.ledger_id != ledger_id or block.ref.last_entry_id < entry_id:
                return None
        return block

    def overlapping(self, ledger_id: int, first: int, last: int) -> Iterator[DispatchBlock]:
        """Yield the blocks that hold any of entries first..last.

        Each may be deleted before the next comes.
        """
        keys = self._keys
        start = max(bisect_right(keys, (ledger_id, first)) - 1, 0)
        for key in keys[start : bisect_right(keys, (ledger_id, last))]:
            block = self.get(key)
            if block is not None and block.ref.ledger_id == ledger_id and block.ref.last_entry_id >= first:
                yield block

    def up_to(self, position: tuple[int, int]) -> list[DispatchBlock]:
        """The blocks that begin at or below `position`, in order."""
        keys, head = self._keys, self._head
        while head < len(keys) and keys[head] not in self:
            head += 1
        self._head = head
        below = keys[head : bisect_right(keys, (position[0], position[1]), head)]
        return [block for key in below if (block := self.get(key)) is not None]


class BlockWatcher(Protocol):
    """Learns what happens to blocks, where a subscription type keeps books of its own."""

    def came_back(self, block: DispatchBlock) -> None:
        """Rows of a block wait again."""

    def restored(self, delivery: Delivery) -> None:
        """A consumer that attached again holds these rows."""

    def settled(self, delivery: Delivery, before: RowSet) -> None:
        """Some of the rows that were pending in a delivery are not any more."""

    def cleared(self) -> None:
        """Every block was forgotten."""


class DispatchBlocks:
    """Blocks in the order of the log, the queues of those that wait, and totals."""

    def __init__(self, remember: Callable[[dict[int, SuspectRows]], None] = lambda _: None) -> None:
        self.index = BlockIndex()
        self.fresh: deque[DispatchBlock] = deque()
        """Blocks never dispatched, in order; those without waiting rows are stale and skipped."""
        self.waiting: SortedDict = SortedDict()
        """Blocks by key whose waiting rows came back or are a cut block's rest."""
        self.suspects = SuspectGroups(remember)
        self.chunks = ChunkGroups()
        self.waiting_messages = 0
        self.unacked_messages = 0
        self.pending_acks = 0
        """Deliveries that hold something unacknowledged."""
        self.watcher: BlockWatcher | None = None

    # ---- what waits

    def head(self) -> DispatchBlock | None:
        """The lowest block with waiting rows."""
        fresh = self.fresh
        while fresh and not fresh[0].waiting:
            fresh.popleft()
        if self.waiting:
            block: DispatchBlock = self.waiting.peekitem(0)[1]
            if not fresh or block.key < fresh[0].key:
                return block
        return fresh[0] if fresh else None

    # ---- rows in, rows out

    def add(self, block: DispatchBlock, parts: list[CountedRows]) -> None:
        """Take in a block that was read, with its rows that wait."""
        self.index.add(block)
        if parts:
            block.waiting = parts
            self.waiting_messages += counted_rows.size(parts)
            self.fresh.append(block)

    def add_whole(self, block: DispatchBlock) -> None:
        """Take in a block that was read, all of whose rows wait."""
        self.index.add(block)
        messages = block.ref.messages
        block.waiting = [((1 << messages) - 1, 0)]
        self.waiting_messages += messages
        self.fresh.append(block)

    def take(self, block: DispatchBlock, limit: int) -> tuple[RowSet, int]:
        """Take up to `limit` waiting rows that share a redelivery count off a block."""
        waiting = block.waiting
        if len(waiting) == 1 and (messages := waiting[0][0].bit_count()) <= limit:
            rows, count = waiting.pop()
            self.waiting_messages -= messages
        else:
            rows, count = counted_rows.take(waiting, limit)
            self.waiting_messages -= rows.bit_count()
        if self.fresh and self.fresh[0] is block:
            self.fresh.popleft()
        if block.waiting or self.waiting:
            self.queue_rest(block)
        return rows, count

    def take_rows(self, block: DispatchBlock, rows: RowSet) -> list[tuple[RowSet, int]]:
        """Take these waiting rows off a block; returns them in order with their redelivery counts.

        Rows that share a count come together.

        `queue_rest` follows when no more are taken.
        """
        waiting = block.waiting
        if len(waiting) == 1:
            known, count = waiting[0]
            self.waiting_messages -= rows.bit_count()
            waiting[:] = [(known ^ rows, count)] if known != rows else ()
            return [(rows, count)]
        taken = [(part, count) for known, count in waiting if (part := known & rows)]
        self.waiting_messages -= counted_rows.remove(waiting, rows)
        return list(counted_rows.in_order(taken))

    def queue_rest(self, block: DispatchBlock) -> None:
        """Let the rest of a cut block wait with the rows that came back."""
        if block.waiting:
            self.waiting[block.key] = block
        elif self.waiting:
            self.waiting.pop(block.key, None)

    def claim(self, block: DispatchBlock, rows: RowSet) -> RowSet:
        """Take those of `rows` that wait, whatever their counts, off a block; returns them."""
        free = rows & (counted_rows.rows_of(block.waiting) | counted_rows.rows_of(block.suspects))
        self._remove_waiting(block, free)
        return free

    def deliver(
        self,
        consumer: Consumer,
        block: DispatchBlock,
        rows: RowSet,
        count: int,
        group: SuspectGroup | None = None,
        *,
        is_from_before: bool = False,
    ) -> Delivery:
        """Make rows that were taken pending at a consumer.

        They are its next delivery, and charged, unless it has them from before this dispatcher began.
        """
        delivery = Delivery(consumer, block, rows, count, group)
        messages = rows.bit_count()
        block.deliveries.append(delivery)
        consumer.deliveries[delivery] = None
        consumer.unacked += messages
        self.unacked_messages += messages
        self.pending_acks += 1
        if group is not None:
            group.deliveries[delivery] = None
            consumer.trial.deliveries[delivery] = None
        if is_from_before:
            delivery.mark_from_before()
        else:
            consumer.next_number += 1
            consumer.granted += messages
            consumer.unconfirmed.append(delivery)
        return delivery

    def restore(
        self,
        consumer: Consumer,
        block: DispatchBlock,
        rows: RowSet,
        count: int,
        group: SuspectGroup | None = None,
    ) -> None:
        """Rows that were taken have been at a consumer since before this dispatcher began."""
        delivery = self.deliver(consumer, block, rows, count, group, is_from_before=True)
        if self.watcher is not None:
            self.watcher.restored(delivery)

    def count_as_one(self, consumer: Consumer, block: DispatchBlock) -> None:
        """A consumer cannot decode a block: each part that it holds counts for one message.

        It holds what waits of the block as well, for it would be cut to the consumer's room again and again.
        Others keep what they hold.
        """
        held = [delivery for delivery in block.deliveries if delivery.consumer is consumer]
        if not held:
            return
        if rest := self.claim(block, block.ref.all_rows):
            self.restore(consumer, block, rest, held[-1].count)
            held.append(block.deliveries[-1])
        for delivery in held:
            if not delivery.is_unreadable:
                delivery.is_unreadable = True
                consumer.unacked -= delivery.messages - 1
                self.unacked_messages -= delivery.messages - 1

    def put_back(
        self, block: DispatchBlock, rows: RowSet, count: int, group: SuspectGroup | None = None
    ) -> None:
        """Let rows that are nowhere wait again, with this redelivery count; suspects with their group."""
        if not rows:
            return
        if group is not None:
            self.suspects.add(block, rows, count, group)
            return
        if block.is_batch and block.waiting:
            # One entry has one count: rows that wait already get the new one.
            known = counted_rows.rows_of(block.waiting)
            rows |= known
            block.waiting.clear()
            self.waiting_messages -= known.bit_count()
        counted_rows.insert(block.waiting, rows, count)
        self.waiting[block.key] = block
        self.waiting_messages += rows.bit_count()
        if self.watcher is not None:
            self.watcher.came_back(block)

    def suspect(self, block: DispatchBlock) -> None:
        """Let rows of a block that was just read wait as suspects, as before."""
        for group, rows in self.suspects.members_of(block.key):
            for known, count in tuple(block.waiting):
                if part := known & rows:
                    self.waiting_messages -= counted_rows.remove(block.waiting, part)
                    self.suspects.add(block, part, count, group)
        if not block.waiting:
            self.waiting.pop(block.key, None)

    def release(self, group: SuspectGroup) -> None:
        """Rows of a group are suspect no more, wherever they are."""
        for key, rows in tuple(group.waiting.items()):
            block = self.suspects.block(key)
            for part, count in self.suspects.take(group, block, rows):
                self.put_back(block, part, count)
        for delivery in group.deliveries:
            delivery.consumer.trial.remove(delivery)
            delivery.group = None
        group.deliveries.clear()
        self.suspects.forget(group)

    def end(self, delivery: Delivery) -> RowSet:
        """Nothing of a delivery is pending any more; returns the rows that were."""
        rows = delivery.rows
        self._shrink(delivery, 0, rows.bit_count())
        return rows

    def settle(self, delivery: Delivery, rows: RowSet) -> int:
        """Settle some rows of a delivery; returns how many of them were pending."""
        gone = delivery.rows & rows
        messages = gone.bit_count()
        if gone:
            self._shrink(delivery, delivery.rows ^ gone, messages)
        return messages

    def _shrink(self, delivery: Delivery, left: RowSet, gone: int) -> None:
        before, delivery.rows = delivery.rows, left
        consumer = delivery.consumer
        if delivery.is_unreadable:
            gone = 0 if left else 1
        consumer.unacked -= gone
        self.unacked_messages -= gone
        if not left:
            self.pending_acks -= 1
            del consumer.deliveries[delivery]
            delivery.block.deliveries.remove(delivery)
        if delivery.group is not None:
            self.suspects.settled(delivery)
        if self.watcher is not None:
            self.watcher.settled(delivery, before)

    # ---- acknowledged

    def drop(self, block: DispatchBlock) -> None:
        """The whole block is acknowledged."""
        for delivery in tuple(block.deliveries):
            self._shrink(delivery, 0, delivery.rows.bit_count())
        if block.waiting:
            self.waiting_messages -= counted_rows.size(block.waiting)
            block.waiting = []
            self.waiting.pop(block.key, None)
        if block.suspects:
            self.suspects.remove(block, block.ref.all_rows)
        self._forget(block)

    def drop_rows(self, block: DispatchBlock, rows: RowSet) -> None:
        """Rows of a block are acknowledged; the block goes with its last row."""
        left = rows.bit_count()
        for delivery in tuple(block.deliveries):
            left -= self.settle(delivery, rows)
            if not left:
                break
        else:
            self._remove_waiting(block, rows)
        if not (block.deliveries or block.waiting or block.suspects):
            self._forget(block)

    def _forget(self, block: DispatchBlock) -> None:
        del self.index[block.key]
        if block.ref.chunks:
            self.chunks.acknowledged(block.key)

    def settle_batch(self, block: DispatchBlock, rows: RowSet, takes_from_waiting: bool) -> None:
        """Settle acknowledged messages of a batch, but not all.

        A batch that waits may still come whole.
        """
        for delivery in tuple(block.deliveries):
            self.settle(delivery, rows)
        if takes_from_waiting:
            self._remove_waiting(block, rows)
        elif block.suspects:
            self.suspects.remove(block, rows)

    def nowhere(self, block: DispatchBlock, rows: RowSet) -> RowSet:
        """Those of `rows` that neither are pending nor wait."""
        for delivery in block.deliveries:
            rows &= ~delivery.rows
        return rows & ~(counted_rows.rows_of(block.waiting) | counted_rows.rows_of(block.suspects))

    def clear(self) -> None:
        """Forget every block: the cursor moved elsewhere."""
        for block in self.index.values():
            for delivery in tuple(block.deliveries):
                self.end(delivery)
            block.waiting = []
        self.index.clear()
        self.waiting.clear()
        self.suspects.clear()
        self.fresh.clear()
        self.chunks.clear()
        self.waiting_messages = 0
        if self.watcher is not None:
            self.watcher.cleared()

    def _remove_waiting(self, block: DispatchBlock, rows: RowSet) -> None:
        if block.waiting:
            self.waiting_messages -= counted_rows.remove(block.waiting, rows)
            if not block.waiting:
                self.waiting.pop(block.key, None)
        if block.suspects:
            self.suspects.remove(block, rows)
