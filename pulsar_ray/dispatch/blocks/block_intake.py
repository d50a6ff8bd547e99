"""Taking in blocks that were read: which rows wait, and which consumers hold already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.counted_rows import CountedRows
from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.blocks.read_blocks import ReadBlocks
from pulsar_ray.dispatch.consumer import Consumer, DispatchBlock
from pulsar_ray.dispatch.returning_consumers import ReportedRows, ReturningConsumers
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.model import row_ranges, row_sets
from pulsar_ray.model.position import LATEST, Position
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import RowSet


class BlockIntake:
    """Takes blocks in from the read position on, once each."""

    def __init__(
        self,
        cursor: ManagedCursor,
        blocks: DispatchBlocks,
        returning: ReturningConsumers,
        consumers: Mapping[int, Consumer],
    ) -> None:
        self.read_position = cursor.mark_delete.next()
        self._has_read = False
        self._cursor = cursor
        self._blocks = blocks
        self._returning = returning
        self._consumers = consumers

    def take_in(self, read: ReadBlocks) -> None:
        """Blocks in the order of the log; those below the read position are known already."""
        cursor, blocks = self._cursor, self._blocks
        # Behind all holes, counts and claims every row of a block waits.
        marks_end = LATEST if self._returning.claims else cursor.marks_end
        read_position: tuple[int, int] = self.read_position
        has_read = False
        for ref, slots in read.each():
            ledger_id, first = ref.ledger_id, ref.first_entry_id
            following = (ledger_id, first + ref.entries)
            if following <= read_position:
                continue
            if has_read and read_position[0] != ledger_id:
                cursor.extend(_before(read_position))
            read_position, has_read = following, True
            if (ledger_id, first) > marks_end:
                blocks.add_whole(DispatchBlock(ref, slots))
                continue
            cursor.extend(_before(following))
            if rows := self._unacknowledged(ref):
                self._add(DispatchBlock(ref, slots), rows)
        if has_read:
            cursor.extend(_before(read_position))
            self.read_position = Position(*read_position)
            self._has_read = True
        if self._has_read and self._returning.claims:
            self._returning.drop_below(self.read_position)

    def has_unread(self, last: Position) -> bool | None:
        """Whether an unacknowledged entry up to `last` was not taken in yet.

        None while consumers report to hold some of those: only taking a block in shows how much of it.
        """
        cursor = self._cursor
        if self.read_position > last:
            return False
        if self._returning.claims:
            return None
        if cursor.ledgers.end < last:
            return True
        entry = cursor.ledgers.after(max(_before(self.read_position), cursor.mark_delete))
        while entry is not None and entry <= last:
            run_end = cursor.deleted.run_end(*entry)
            if run_end is None:
                return True
            entry = cursor.ledgers.after(Position(entry.ledger_id, run_end))
        return False

    def seek(self, position: Position) -> None:
        """Read on from another position; it may lie within a block."""
        self.read_position = position
        self._has_read = False

    def restore(self, consumer: Consumer, held: Sequence[ReportedRows]) -> None:
        """Give a consumer what it reports to hold.

        Blocks that were not read yet are settled when they are.
        """
        by_block: dict[tuple[int, int], RowRanges] = {}
        end = self._cursor.ledgers.end
        for ledger_id, entry_id, rows in held:
            if (ledger_id, entry_id) > end:
                continue  # it does not exist, and waiting for it would never end
            key = (ledger_id, entry_id)
            by_block[key] = row_ranges.union(by_block.get(key, ()), rows)
        for key, held_rows in by_block.items():
            if (block := self._blocks.index.get(key)) is not None:
                self._restore_in(consumer, block, row_sets.of_ranges(held_rows))
            elif key >= self.read_position or (not self._has_read and end >= self.read_position):
                self._returning.claim(consumer.spec.consumer_id, key, held_rows)

    def _unacknowledged(self, ref: BlockRef) -> RowSet:
        cursor = self._cursor
        first = ref.first_entry_id
        if not ref.is_batch:
            if not cursor.deleted and (ref.ledger_id, first) > cursor.mark_delete:
                return ref.all_rows
            gaps = cursor.missing(ref.ledger_id, first, ref.last_entry_id)
            return row_sets.of_ranges(tuple((a - first, b - first + 1) for a, b in gaps))
        position = Position(ref.ledger_id, first)
        if cursor.is_acknowledged(position):
            return 0
        known = cursor.acknowledged_rows(position)
        # Acknowledged one by one before it was read: only now is it known how many there are.
        if known and cursor.acknowledge_rows(position, known, ref.messages, is_durable=False):
            return 0
        return ref.all_rows & ~row_sets.of_ranges(cursor.durable_rows(position))

    def _add(self, block: DispatchBlock, rows: RowSet) -> None:
        claims = self._returning.claims.pop(block.key, ()) if self._returning.claims else ()
        self._blocks.add(block, self._counted(block.ref, rows))
        for consumer_id, claimed in claims:
            self._restore_in(self._consumers[consumer_id], block, row_sets.of_ranges(claimed))

    def _restore_in(self, consumer: Consumer, block: DispatchBlock, rows: RowSet) -> None:
        """Make rows pending at a consumer that has them, unless others got them."""
        if block.is_batch:
            self._restore_batch(consumer, block, rows)
            return
        for part, count in self._counted(block.ref, self._blocks.claim(block, rows)):
            self._blocks.restore(consumer, block, part, count)

    def _restore_batch(self, consumer: Consumer, block: DispatchBlock, rows: RowSet) -> None:
        """Restore a batch whole: the rows that its consumer does not hold are acknowledged."""
        ref, position = block.ref, Position(*block.key)
        free = self._blocks.claim(block, ref.all_rows)
        if not free:
            return
        others = row_sets.ranges_of(free & ~rows)
        if self._cursor.acknowledge_rows(position, others, ref.messages, is_durable=False):
            self._blocks.drop(block)
            return
        held = free & rows & ~row_sets.of_ranges(self._cursor.acknowledged_rows(position))
        if held:
            count = self._cursor.counts.of(*block.key)
            self._blocks.restore(consumer, block, held, count)

    def _counted(self, ref: BlockRef, rows: RowSet) -> list[CountedRows]:
        """Rows with the redelivery counts the cursor knows."""
        counts = self._cursor.counts
        if not rows or not len(counts):
            return [(rows, 0)] if rows else []
        first = ref.first_entry_id
        if not ref.row_is_entry:
            return [(rows, counts.of(ref.ledger_id, first))]
        parts: list[CountedRows] = []
        for start, end in row_sets.ranges_of(rows):
            for a, b, count in counts.runs(ref.ledger_id, first + start, first + end - 1):
                counted_rows.insert(parts, row_sets.span(a - first, b - first + 1), count)
        return parts


def _before(position: tuple[int, int]) -> Position:
    """Return the entry before a position that is not the first of its ledger."""
    return Position(position[0], position[1] - 1)
