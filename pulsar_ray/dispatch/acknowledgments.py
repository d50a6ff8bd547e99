"""Acknowledgments, applied to the cursor and to what is pending."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import DispatchBlock
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.model import row_ranges, row_sets
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import EntryBits, RowSet

MAX_ROWS = 1 << 26
"""No batch has as many messages: acknowledged rows above are none."""


class Acknowledgments:
    """Applies acknowledgments: repeats, late ones and those of other consumers count alike.

    All of them are facts about messages. One of a message that does not exist, or is acknowledged already,
    has no effect.
    """

    def __init__(self, cursor: ManagedCursor, blocks: DispatchBlocks) -> None:
        self._cursor = cursor
        self._blocks = blocks

    def acknowledge_ranges(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Entries (ledger, first, last). Costs per range and block, not per entry.

        Neighbouring ranges within one block, as Key_Shared has them, cost little more than one.
        """
        block: DispatchBlock | None = None
        within = 0  # rows of that block
        for ledger_id, first, last in ranges:
            if block is None or not _is_part(block.ref, ledger_id, first, last):
                if block is not None:
                    self._acknowledge_rows(block, within)
                block, within = self._blocks.index.find(ledger_id, first), 0
                if block is None or not _is_part(block.ref, ledger_id, first, last):
                    self._acknowledge_range(ledger_id, first, last, block)
                    block = None
                    continue
            origin = block.ref.first_entry_id
            within |= row_sets.span(first - origin, last - origin + 1)
        if block is not None:
            self._acknowledge_rows(block, within)
        self.acknowledge_chunks()

    def acknowledge_bits(self, bits: EntryBits) -> None:
        """Scattered entries. Costs per block that has some of them."""
        ledger_id, origin, data = bits
        entries = int.from_bytes(data, "little")
        if not self._cursor.acknowledge_bits(ledger_id, origin, entries):
            return
        if self._blocks.chunks:
            for first, end in row_sets.ranges_of(entries):
                self._blocks.chunks.acknowledged_within(ledger_id, origin + first, origin + end - 1)
        for block in self._blocks.index.overlapping(ledger_id, origin, origin + entries.bit_length() - 1):
            ref = block.ref
            offset = ref.first_entry_id - origin
            rows = (entries >> offset if offset >= 0 else entries << -offset) & ((1 << ref.entries) - 1)
            if rows and ref.row_is_entry:
                self._blocks.drop_rows(block, rows)
            elif rows:
                self._blocks.drop(block)
        self.acknowledge_chunks()

    def acknowledge_chunks(self) -> None:
        """Acknowledge chunks that are done: with their message, or because it will never be whole."""
        done = self._blocks.chunks.done
        if done:
            for ref in done:
                self._cursor.acknowledge(ref.ledger_id, ref.first_entry_id, ref.last_entry_id)
            done.clear()

    def _acknowledge_rows(self, block: DispatchBlock, rows: RowSet) -> None:
        """Rows that are entries."""
        ledger_id, origin = block.key
        if row_sets.is_range(rows):
            first, end = row_sets.first(rows), rows.bit_length()
            added = self._cursor.acknowledge(ledger_id, origin + first, origin + end - 1)
        else:
            added = self._cursor.acknowledge_bits(ledger_id, origin, rows)
        if added:
            self._blocks.drop_rows(block, rows)

    def _acknowledge_range(self, ledger_id: int, first: int, last: int, at: DispatchBlock | None) -> None:
        """Entries that are not part of one block; `at` holds the first of them."""
        if not self._cursor.acknowledge(ledger_id, first, last):
            return
        if self._blocks.chunks:
            self._blocks.chunks.acknowledged_within(ledger_id, first, last)
        if at is not None and at.key == (ledger_id, first) and at.ref.entries == last - first + 1:
            self._blocks.drop(at)
            return
        for block in self._blocks.index.overlapping(ledger_id, first, last):
            ref = block.ref
            if first <= ref.first_entry_id and ref.last_entry_id <= last:
                self._blocks.drop(block)
            else:
                self._blocks.drop_rows(block, ref.rows_of_entries(first, last))

    def acknowledge_removed(self, position: Position, rows: RowRanges, messages: int) -> None:
        """Acknowledge messages of a batch for good that compaction has removed.

        The batch was not read yet.
        """
        self._cursor.acknowledge_rows(position, rows, messages, is_durable=True)

    def acknowledge_batch(self, ledger_id: int, entry_id: int, rows: RowRanges, is_durable: bool) -> None:
        """Acknowledge messages of a batch entry, by batch index.

        An entry of a single message has only index 0. Of a batch that was given out in parts they are kept
        durably, whatever `is_durable`: no consumer has the whole, so none can tell a later dispatcher of it.
        """
        position = Position(ledger_id, entry_id)
        rows = row_ranges.union((), rows)  # a client may send them in any order
        block = self._blocks.index.find(ledger_id, entry_id)
        # A client may name rows that there are not, however high.
        most = MAX_ROWS if block is None else block.ref.messages if block.is_batch else 1
        rows = row_ranges.intersect(rows, row_ranges.all_rows(most))
        if not rows:
            return
        if block is None:
            self._cursor.acknowledge_rows(position, rows, None, is_durable)
            return
        is_durable = is_durable or _is_given_in_parts(block)
        if not block.is_batch:
            self.acknowledge_ranges([(ledger_id, entry_id, entry_id)])
        elif self._cursor.acknowledge_rows(position, rows, block.ref.messages, is_durable):
            self._blocks.drop(block)
        else:
            self._blocks.settle_batch(block, row_sets.of_ranges(rows), takes_from_waiting=is_durable)

    def acknowledge_up_to(self, position: Position, row: int, is_durable: bool) -> None:
        """Acknowledge everything up to an entry, or up to message `row` of the batch there.

        `row` is -1 for the whole entry.

        Entry -1 is the end of the ledger before: what comes below a batch that is the first of its ledger.
        """
        if position.entry_id < 0:
            self._acknowledge_below(Position(position.ledger_id, 0))
            return
        block = self._blocks.index.find(*position)
        if row >= 0 and (block is None or block.ref.is_batch):
            self._acknowledge_below(position)
            self.acknowledge_batch(*position, ((0, row + 1),), is_durable)
        else:
            self._acknowledge_entries(position)

    def _acknowledge_entries(self, last: Position, kept: Collection[Position] = ()) -> None:
        if self._acknowledge_all(last, kept):
            self._drop_up_to(last)
            self._blocks.chunks.acknowledged_up_to(last)
            self.acknowledge_chunks()

    def _acknowledge_all(self, last: Position, known: Collection[Position] = ()) -> bool:
        """Acknowledge entries up to one, without chunks of messages that stand behind it.

        Those that were read here are known, and those that are given.
        """
        cursor = self._cursor
        kept = sorted({*known, *self._blocks.chunks.kept(last)}) if known or self._blocks.chunks else []
        if not kept:
            return cursor.acknowledge_up_to(last)
        version = cursor.version
        cursor.acknowledge_below(kept[0])
        for place, following in zip(kept, [*kept[1:], last.next()], strict=True):
            entry = cursor.ledgers.after(place)
            while entry is not None and entry < following:
                end = cursor.ledgers.last_entry_of(entry.ledger_id)
                if following.ledger_id == entry.ledger_id:
                    end = min(end, following.entry_id - 1)
                cursor.acknowledge(entry.ledger_id, entry.entry_id, end)
                entry = cursor.ledgers.after(Position(entry.ledger_id, end))
        return cursor.version != version

    def acknowledge_through(self, position: Position, kept: Collection[Position] = ()) -> int:
        """Acknowledge all entries at or below a position, for an administrator.

        Returns how many were not acknowledged.

        Consumers keep the messages of it that they hold; acknowledging these has no further effect. The
        places in `kept` are chunks of messages that stand behind the position: these are left.
        """
        cursor = self._cursor
        last = cursor.ledgers.position_of(cursor.ledgers.count_up_to(position) - 1)
        if last is None:
            return 0
        before = cursor.backlog()
        self._acknowledge_entries(last, kept)
        return before - cursor.backlog()

    def _acknowledge_below(self, position: Position) -> None:
        ledgers = self._cursor.ledgers
        if position.entry_id > ledgers.last_entry_of(position.ledger_id):
            return
        before = ledgers.position_of(ledgers.count_up_to(position) - 2)
        if before is not None and self._acknowledge_all(before):
            self._drop_up_to(Position(position.ledger_id, position.entry_id - 1))
            self.acknowledge_chunks()

    def _drop_up_to(self, position: Position) -> None:
        for block in self._blocks.index.up_to(position):
            ref = block.ref
            if (ref.ledger_id, ref.last_entry_id) <= position:
                self._blocks.drop(block)
            else:
                self._blocks.drop_rows(block, ref.rows_of_entries(ref.first_entry_id, position.entry_id))


def _is_given_in_parts(block: DispatchBlock) -> bool:
    """Return whether consumers get a block's messages apart: some may have ended one."""
    return bool(block.suspects) or any(delivery.is_part for delivery in block.deliveries)


def _is_part(ref: BlockRef, ledger_id: int, first: int, last: int) -> bool:
    """Return whether entries first..last are a part, and not all, of a block of entries."""
    return (
        ref.row_is_entry
        and ref.ledger_id == ledger_id
        and ref.first_entry_id <= first <= last <= ref.last_entry_id
        and last - first + 1 < ref.entries
    )
