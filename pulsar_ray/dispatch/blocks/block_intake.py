"""Decides how far the log is read ahead, and takes in blocks that were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from pulsar_ray.dispatch.acknowledgments import Acknowledgments
from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_groups import StoredChunk
from pulsar_ray.dispatch.blocks.counted_rows import CountedRows
from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, DispatchBlock
from pulsar_ray.dispatch.delayed_blocks import DelayedBlocks
from pulsar_ray.dispatch.key_shared.sticky_key import Slots
from pulsar_ray.dispatch.returning_consumers import ReportedRows, ReturningConsumers
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.dispatch.subscription_types.subscription_type import SubscriptionType
from pulsar_ray.format.delivery_times import DeliveryTimes
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor, SuspectRows
from pulsar_ray.model import row_ranges, row_sets
from pulsar_ray.model.message_id import LATEST, Position
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import RowSet


class ReadBlocks(NamedTuple):
    """Blocks travel from the log to the dispatcher in columns of equal length.

    A column that the subscription does not need is None, so that a block costs nothing but its reference.
    """

    refs: Sequence[BlockRef]
    slots: Sequence[Slots] | None = None
    """The slots of the blocks' sticky keys, for Key_Shared."""
    delays: Sequence[DeliveryTimes | None] | None = None
    """When the rows of delayed blocks are due, for Shared and Key_Shared."""
    chunks: Mapping[tuple[int, int], StoredChunk] | None = None
    """Which of the blocks are chunks, by ledger and entry id; it is no column."""

    def each(self) -> Iterator[tuple[BlockRef, Slots | None, DeliveryTimes | None]]:
        """Yield each block with its slots and times."""
        slots = repeat(None) if self.slots is None else self.slots
        return zip(self.refs, slots, repeat(None) if self.delays is None else self.delays, strict=False)


_MAX_MESSAGES = 65_536
_MOST_DUE_MESSAGES = 8_192


class ReadAhead:
    """Decides how far to read ahead: twice what consumers could take, within a bound.

    For Key_Shared it is more, in large portions: keys of many blocks together cost a fraction of what they
    cost block by block.
    """

    def __init__(
        self,
        settings: DispatchSettings,
        blocks: DispatchBlocks,
        returning: ReturningConsumers,
        consumers: Mapping[int, Consumer],
        kind: SubscriptionType,
    ) -> None:
        self._settings = settings
        self._blocks = blocks
        self._returning = returning
        self._consumers = consumers
        self._type = kind

    def messages_wanted(self) -> int:
        """How many messages to read and offer now."""
        limit, portion = _MAX_MESSAGES, 0
        if not self._returning.claims:
            room = 0
            for consumer in self._consumers.values():
                permits = consumer.credit - consumer.granted
                if permits > 0:
                    room += permits
            limit = min(2 * room, limit)
            keyed = self._type.keyed
            if room and keyed is not None:
                limit = min(max(limit, self._look_ahead()), _MAX_MESSAGES)
                portion = limit // 4
                if 2 * self._blocks.waiting_messages > limit and not keyed.is_short:
                    return 0
        wanted = limit - self._blocks.waiting_messages
        return max(wanted, portion) if wanted > 0 else 0

    def due_wanted(self) -> int:
        """How many delayed messages to take in that are due.

        They are at hand beside what is read ahead, so that neither holds the other up.
        """
        if self._returning.claims or self._returning.awaited:
            return 0
        room = sum(max(consumer.permits, 0) for consumer in self._consumers.values())
        if not room:
            return 0
        limit = 2 * room
        if self._type.keyed is not None:
            limit = max(limit, self._look_ahead())
        left = 2 * min(limit, _MAX_MESSAGES) - self._blocks.waiting_messages
        return max(min(room, left, _MOST_DUE_MESSAGES), 0)

    def _look_ahead(self) -> int:
        """Return how many messages Key_Shared lets wait, so that other consumers get on.

        At that limit nothing is read until some of them can go: a consumer that takes nothing stops the
        others in the end, as in Pulsar, and `why_blocked` names it. The last portion may go a quarter beyond.
        """
        settings = self._settings
        limit = settings.look_ahead_messages_per_subscription
        of_consumers = settings.look_ahead_messages_per_consumer * len(self._consumers)
        if of_consumers and (not limit or of_consumers < limit):
            limit = of_consumers
        return limit or _MAX_MESSAGES


class BlockIntake:
    """Takes blocks in from the read position on, once each."""

    def __init__(
        self,
        cursor: ManagedCursor,
        blocks: DispatchBlocks,
        returning: ReturningConsumers,
        consumers: Mapping[int, Consumer],
        delayed: DelayedBlocks,
        acknowledgments: Acknowledgments,
    ) -> None:
        self.read_position = cursor.mark_delete.next()
        """The first entry that was not taken in yet; offers go on there."""
        self._has_read = False
        self._cursor = cursor
        self._blocks = blocks
        self._returning = returning
        self._consumers = consumers
        self._delayed = delayed
        self._acknowledgments = acknowledgments
        self.suspect(cursor.suspects)

    def suspect(self, known: dict[int, SuspectRows]) -> None:
        """Let these groups be suspects when their blocks are read."""
        if known:
            self._blocks.suspects.restore(known, self.read_position)

    def take_in(self, read: ReadBlocks, now_ms: int = 0) -> None:
        """Blocks in the order of the log; those below the read position are known already."""
        cursor, blocks = self._cursor, self._blocks
        extend = cursor.ledgers.extend
        # Behind all holes, counts and claims every row of a block waits.
        marks_end = LATEST if self._returning.claims else cursor.marks_end
        read_position: tuple[int, int] = self.read_position
        has_read = False
        for ref, slots, times in read.each():
            ledger_id, first = ref.ledger_id, ref.first_entry_id
            following = (ledger_id, first + ref.entries)
            if following <= read_position:
                continue
            if has_read and read_position[0] != ledger_id:
                extend(read_position[0], read_position[1] - 1)
            read_position, has_read = following, True
            if read.chunks and (chunk := read.chunks.get((ledger_id, first))) is not None:
                extend(ledger_id, following[1] - 1)
                self._take_in_chunk(ref, chunk, slots, times, now_ms)
                continue
            if times is not None:
                extend(ledger_id, following[1] - 1)
                self._take_in_delayed(ref, slots, times)
                continue
            if (ledger_id, first) > marks_end:
                blocks.add_whole(DispatchBlock(ref, slots))
                continue
            extend(ledger_id, following[1] - 1)
            if rows := self._unacknowledged(ref):
                self._add(DispatchBlock(ref, slots), rows)
        if has_read:
            extend(read_position[0], read_position[1] - 1)
            self.read_position = Position(*read_position)
            self._has_read = True
            if blocks.suspects.groups:
                blocks.suspects.has_read(self.read_position)
        if self._has_read and self._returning.claims:
            self._returning.drop_below(self.read_position)

    def _take_in_chunk(
        self,
        ref: BlockRef,
        chunk: StoredChunk,
        slots: Slots | None,
        times: DeliveryTimes | None,
        now_ms: int,
    ) -> None:
        """Take in the whole message with its last chunk: only whether that is acknowledged counts."""
        groups = self._blocks.chunks
        whole = groups.take(ref, chunk, now_ms)
        if whole is not None:
            rows = self._unacknowledged(whole)
            if not rows:
                groups.acknowledged((ref.ledger_id, ref.first_entry_id))
            elif times is None:
                self._add(DispatchBlock(whole, slots), rows)
            else:
                self._take_in_delayed(whole, slots, times)
        self._acknowledgments.acknowledge_chunks()

    def _take_in_delayed(self, ref: BlockRef, slots: Slots | None, times: DeliveryTimes) -> None:
        """Take in the rows of a block that do not have to wait.

        The others are left to the tracker.
        """
        rows, due = self._unacknowledged(ref), self._delayed.due_rows(ref, times)
        key = (ref.ledger_id, ref.first_entry_id)
        claims = self._returning.claims.pop(key, ()) if self._returning.claims else ()
        for _, claimed, _ in claims:
            due |= row_sets.of_ranges(claimed)  # a consumer has them already
        if left := rows & ~due:
            self._delayed.left(ref, left)
        self._put(ref, slots, rows & due)
        block = self._blocks.index.get(key)
        if block is not None:
            for incarnation, claimed, is_part in claims:
                rows = row_sets.of_ranges(claimed)
                self._restore_in(self._consumers[incarnation], block, rows, is_part=is_part)

    def take_due(self, read: ReadBlocks, rows: Sequence[RowSet]) -> None:
        """Rows that the tracker hands over, of blocks anywhere in the log.

        Those that are acknowledged, or here already, change nothing. A message in chunks comes as its last
        one; with what was read of it, unless it is known.
        """
        for (ref, slots, _), due in zip(read.each(), rows, strict=False):
            chunk = read.chunks.get((ref.ledger_id, ref.first_entry_id)) if read.chunks else None
            whole = self._blocks.chunks.whole(ref, chunk)
            if whole is not None:
                self._put(whole, slots, self._unacknowledged(whole) & due)

    def _put(self, ref: BlockRef, slots: Slots | None, rows: RowSet) -> None:
        """Let rows of a delayed block wait for a consumer, unless they are somewhere already."""
        block = self._blocks.index.get((ref.ledger_id, ref.first_entry_id))
        if block is not None:
            rows = self._blocks.nowhere(block, rows)
        elif rows:
            block = DispatchBlock(ref, slots)
            self._blocks.index.insert(block)
        if block is not None:
            for part, count in self._counted(ref, rows):
                self._blocks.put_back(block, part, count)
            if self._blocks.suspects.groups:
                self._blocks.suspect(block)

    def has_unacknowledged(self, ref: BlockRef) -> bool:
        """Whether anything of a block is not acknowledged."""
        return bool(self._unacknowledged(ref))

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
        before = Position(self.read_position.ledger_id, self.read_position.entry_id - 1)
        entry = cursor.ledgers.after(max(before, cursor.mark_delete))
        while entry is not None and entry <= last:
            run_end = cursor.deleted.run_end(*entry)
            if run_end is None:
                return True
            entry = cursor.ledgers.after(Position(entry.ledger_id, run_end))
        return False

    def pass_acknowledged(self) -> bool:
        """Read on behind the mark-delete position, as what stands before it may be trimmed.

        False if it has been read up to there.
        """
        behind = self._cursor.mark_delete.next()
        if behind <= self.read_position:
            return False
        self.pass_removed(behind)
        return True

    def pass_removed(self, behind: Position) -> None:
        """Read on at a position behind: nothing before it is left to read."""
        self.read_position, self._has_read = behind, True
        if self._blocks.suspects.groups:
            self._blocks.suspects.has_read(behind)
        if self._returning.claims:
            self._returning.drop_below(behind)

    def seek(self, position: Position) -> None:
        """Read on from another position; it may lie within a block."""
        self.read_position = position
        self._has_read = False

    def restore(
        self, consumer: Consumer, held: Sequence[ReportedRows], parts: Sequence[ReportedRows] = ()
    ) -> None:
        """Give a consumer what it reports to hold.

        `held` is of batches that it was given whole, `parts` of batches that it was given in part.
        Blocks that were not read yet are settled when they are.
        """
        for reported, is_part in ((held, False), (parts, True)):
            for key, rows in self._by_block(reported).items():
                if (block := self._blocks.index.get(key)) is not None:
                    self._restore_in(consumer, block, row_sets.of_ranges(rows), is_part=is_part)
                elif key >= self.read_position or (
                    not self._has_read and self._cursor.ledgers.end >= self.read_position
                ):
                    self._returning.claim(consumer.spec.incarnation, key, rows, is_part=is_part)

    def _by_block(self, reported: Sequence[ReportedRows]) -> dict[tuple[int, int], RowRanges]:
        by_block: dict[tuple[int, int], RowRanges] = {}
        end = self._cursor.ledgers.end
        for ledger_id, entry_id, rows in reported:
            if (ledger_id, entry_id) > end:
                continue  # it does not exist, and waiting for it would never end
            key = (ledger_id, entry_id)
            by_block[key] = row_ranges.union(by_block.get(key, ()), rows)
        return by_block

    def _unacknowledged(self, ref: BlockRef) -> RowSet:
        cursor = self._cursor
        first = ref.first_entry_id
        if not ref.is_batch:
            if not cursor.deleted.entries and (ref.ledger_id, first) > cursor.mark_delete:
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
        if self._blocks.suspects.groups:
            self._blocks.suspect(block)
        for incarnation, claimed, is_part in claims:
            rows = row_sets.of_ranges(claimed)
            self._restore_in(self._consumers[incarnation], block, rows, is_part=is_part)

    def _restore_in(self, consumer: Consumer, block: DispatchBlock, rows: RowSet, *, is_part: bool) -> None:
        """Make rows pending at a consumer that has them, unless others got them.

        Rows of a batch that it does not hold are acknowledged, unless it was given a part of that only.
        """
        if block.is_batch and not is_part:
            self._restore_batch(consumer, block, rows)
            return
        for part, count in self._counted(block.ref, self._blocks.claim(block, rows)):
            self._restore_part(consumer, block, part, count)

    def _restore_part(self, consumer: Consumer, block: DispatchBlock, rows: RowSet, count: int) -> None:
        """Make rows that were taken pending; suspects with their groups."""
        for group, members in self._blocks.suspects.members_of(block.key):
            if part := rows & members:
                self._blocks.restore(consumer, block, part, count, group)
                rows ^= part
        if rows:
            self._blocks.restore(consumer, block, rows, count)

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
            self._restore_part(consumer, block, held, count)

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
