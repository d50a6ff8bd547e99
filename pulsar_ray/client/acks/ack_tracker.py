"""Acknowledgments of one consumer on one partition, gathered until they are sent."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pulsar_ray.client.received.message import Rows, ranges_of
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.row_ranges import RowRanges, union
from pulsar_ray.model.row_ranges import count as count_rows
from pulsar_ray.model.row_sets import (
    EntryBits,
    EntryRange,
    EntrySet,
    RowSet,
    entry_set,
    flagged,
    joined,
    neighbours,
    of_ranges,
    span,
)

BatchRows = tuple[int, int, RowRanges]

_SHORT_RUN = 8
WHOLE_ENTRY = -1
"""The row of a cumulative acknowledgment that covers its entry completely."""
MAX_UNSIZED = 10_000
"""Most batches of unknown size whose acknowledged rows are remembered."""
MAX_GONE = 1000
"""About how many partly acknowledged batches are remembered that are not held."""


class AckBatch(NamedTuple):
    """Acknowledgments for one Acknowledge request."""

    ranges: list[EntryRange]
    """(ledger id, first entry id, last entry id), inclusive, disjoint and sorted."""
    batch_rows: list[BatchRows]
    """(ledger id, entry id, half-open row ranges) of batches that are not complete yet."""
    cumulative: tuple[int, int, int] | None
    """(ledger id, entry id, last row or WHOLE_ENTRY)."""
    entry_bits: Sequence[EntryBits] = ()
    """More entries, scattered ones."""
    moved_rows: Sequence[BatchRows] = ()
    """Rows of batches that must not come again, even where rows are not acknowledged durably."""


class _PartialBatch:
    """A batch some rows of which are acknowledged."""

    __slots__ = ("acknowledged", "outstanding")

    def __init__(self, size: int) -> None:
        self.acknowledged = bytearray(size)
        self.outstanding = size
        """Rows left to acknowledge, as of the last look at the flags."""

    def rows(self) -> RowRanges:
        return _ranges_of_flags(self.acknowledged)


def _ranges_of_flags(flags: bytearray) -> RowRanges:
    found = []
    first = flags.find(1)
    while first >= 0:
        end = flags.find(0, first)
        end = len(flags) if end < 0 else end
        found.append((first, end))
        first = flags.find(1, end)
    return tuple(found)


def span_of(low: int, high: int, first: int, count: int) -> RowSet:
    """Which of `count` entries from `first` on are in low..high, as bits."""
    low, end = max(low - first, 0), min(high + 1 - first, count)
    return span(low, end) if low < end else 0


class RowFlags:
    """The acknowledged rows of one received block, which any thread flags without a lock."""

    __slots__ = ("block", "flags")

    def __init__(self, block: ReceivedBlock | None, flags: bytearray) -> None:
        self.block = block
        self.flags = flags


NO_FLAGS = RowFlags(None, bytearray())
"""Of no block: the next message begins another one."""


class AckTracker:
    """Groups acknowledgments into ranges; the consumer's lock guards all but `current`.

    Messages of one block, in whatever order, cost a flag each, and no lock (ADR 0149): a caller that
    acknowledges a message of the `current` block sets its row in the flags, adds one to `count`, and looks
    whether `current` is still the same. A reader of flags puts another in its place before: the next reader
    sees the row if none has done so; otherwise the caller says so by `add_late`. `add_message` makes another
    block the current one.

    A batch is acknowledged as an entry once all its rows are. Before that its rows are sent only with
    `batch_index_ack`; in any case they are remembered here, so that a batch that comes again is not handed
    out twice in part (`outstanding_rows`).
    """

    __slots__ = (
        "_batch_index_ack",
        "_cumulative",
        "_dirty",
        "_entries",
        "_first",
        "_last",
        "_ledger",
        "_most_partial",
        "_moved",
        "_partial",
        "_ranges",
        "_shared",
        "_singles",
        "_unsized",
        "_unsized_sent",
        "count",
        "current",
    )

    def __init__(self, *, batch_index_ack: bool = False) -> None:
        self._batch_index_ack = batch_index_ack
        # Ledger id, first and last entry id of each range, one after the other.
        self._ranges: list[int] = []
        # The range that is growing now: in-order acknowledgment costs no object per message.
        self._ledger = -1
        self._first = 0
        self._last = -1
        # Entries of that ledger that came in no run, or in a short one.
        self._singles = array("q")
        self._partial: dict[tuple[int, int], _PartialBatch] = {}
        self._most_partial = MAX_GONE
        # Flags of blocks whose rows are entries, by ledger id and first entry id.
        self._entries: dict[tuple[int, int], bytearray] = {}
        self.current = NO_FLAGS
        """Of the block of several messages that was acknowledged last; never the same object twice."""
        self._unsized: dict[tuple[int, int], RowRanges] = {}
        self._unsized_sent: dict[tuple[int, int], RowRanges] = {}
        self._dirty: set[tuple[int, int]] = set()
        self._shared: set[tuple[int, int]] = set()
        self._moved: dict[tuple[int, int], RowRanges] = {}
        self._cumulative: tuple[int, int, int] | None = None
        self.count = 0
        """About how many acknowledgments were added since the last drain; 0 only if none was.

        Threads that flag rows at the same time may count one for two.
        """

    def share(self, ledger_id: int, entry_id: int) -> None:
        """Send each row of a batch from now on: others have the rest of it.

        Only the dispatcher then knows when it is complete. Rows that were acknowledged before are sent now.
        """
        key = (ledger_id, entry_id)
        if key in self._shared:
            return
        self._look_at_flags()
        self._shared.add(key)
        if key in self._partial:
            self._send_again(key)
        while len(self._shared) > MAX_UNSIZED:
            self._shared.pop()

    def repeat_shared(self) -> None:
        """Send the acknowledged rows of shared batches once more: the dispatcher is another one."""
        self._look_at_flags()
        for key in self._shared & self._partial.keys():
            self._send_again(key)

    def _send_again(self, key: tuple[int, int]) -> None:
        """Have all acknowledged rows of a batch drained next, as one acknowledgment more."""
        if key not in self._dirty:
            self._dirty.add(key)
            self.count += 1

    def add_message(self, block: ReceivedBlock, row: int) -> None:
        """Acknowledge a message of another block than the last one.

        For a block of a single message `add` costs less.
        """
        self._look_at_flags()
        key = (block.ledger_id, block.first_entry_id)
        if block.is_batch:
            batch = self._partial.get(key)
            if batch is None:
                batch = self._partial[key] = _PartialBatch(block.message_count)
            flags = batch.acknowledged
        else:
            known = self._entries.get(key)
            if known is None:
                known = self._entries[key] = bytearray(block.message_count)
            flags = known
        flags[row] = 1
        self.count += 1
        self.current = RowFlags(block, flags)

    def add_late(self, flagged: RowFlags, row: int) -> None:
        """Acknowledge a row that was flagged while another thread read the flags."""
        block = flagged.block
        assert block is not None
        if block.is_batch:
            batch = self._partial.get((block.ledger_id, block.first_entry_id))
            if batch is None or batch.acknowledged is not flagged.flags:
                return  # All of the batch is acknowledged by now, or forgotten.
        self.add_message(block, row)

    def _look_at_flags(self) -> None:
        """Take over the flags of a batch, which may be complete by them."""
        block = self.current.block
        if block is None:
            return
        self.current = NO_FLAGS
        if block.is_batch:
            key = (block.ledger_id, block.first_entry_id)
            self._look_at(key, self._partial[key])

    def _look_at(self, key: tuple[int, int], batch: _PartialBatch) -> int:
        """Count the rows flagged since the last look."""
        added = batch.outstanding - batch.acknowledged.count(0)
        batch.outstanding -= added
        if not batch.outstanding:
            self._complete(key)
        elif added and (self._batch_index_ack or key in self._shared):
            self._dirty.add(key)
        return added

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Acknowledge an entry: an unbatched message, or a batch as a whole."""
        self.count += 1
        last = self._last
        if entry_id == last + 1 and ledger_id == self._ledger:
            self._last = entry_id
        elif last == self._first and ledger_id == self._ledger:
            self._singles.append(last)
            self._first = self._last = entry_id
        else:
            self._start_range(ledger_id, entry_id, entry_id)

    def add_range(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> None:
        """Acknowledge neighbouring entries."""
        self.count += last_entry_id - first_entry_id + 1
        if first_entry_id == self._last + 1 and ledger_id == self._ledger:
            self._last = last_entry_id
        else:
            self._start_range(ledger_id, first_entry_id, last_entry_id)

    def _start_range(self, ledger_id: int, first: int, last: int) -> None:
        if self._last - self._first >= _SHORT_RUN:
            self._ranges += (self._ledger, self._first, self._last)
        else:
            self._singles.extend(range(self._first, self._last + 1))
        if ledger_id != self._ledger:
            for entry_id in self._singles:
                self._ranges += (self._ledger, entry_id, entry_id)
            self._singles = array("q")
        self._ledger, self._first, self._last = ledger_id, first, last

    def add_row(self, ledger_id: int, entry_id: int, row: int, batch_size: int) -> None:
        """Acknowledge one message of a batch."""
        self.add_rows(ledger_id, entry_id, ((row, row + 1),), batch_size)

    def add_rows(
        self, ledger_id: int, entry_id: int, rows: Iterable[tuple[int, int]], batch_size: int = 0
    ) -> None:
        """Acknowledge half-open row ranges of a batch.

        Rows of a batch of unknown size (0) are sent on as they are: only the dispatcher knows whether they
        complete it.
        """
        self._look_at_flags()
        key = (ledger_id, entry_id)
        batch = self._partial.get(key)
        if batch is None:
            if not batch_size:
                known = self._unsized.get(key, ())
                merged = self._unsized[key] = union(known, rows)
                self.count += count_rows(merged) - count_rows(known)
                return
            batch = self._partial[key] = _PartialBatch(batch_size)
        for first, end in rows:
            batch.acknowledged[first:end] = b"\x01" * (end - first)
        self.count += self._look_at(key, batch)

    def add_part(self, block: ReceivedBlock, rows: Rows) -> None:
        """Acknowledge rows of a received block."""
        start = block.first_entry_id
        if block.is_batch and len(rows) == block.message_count:
            self._add_batch(block.ledger_id, start, block.message_count)
            return
        ranges = ranges_of(rows)
        if block.is_batch:
            self.add_rows(block.ledger_id, start, ranges, block.message_count)
            return
        for first, end in ranges:
            self.add_range(block.ledger_id, start + first, start + end - 1)

    def add_moved(self, block: ReceivedBlock, rows: Rows) -> None:
        """Acknowledge rows of a received block that were copied elsewhere.

        The dispatcher keeps them durably even if the rest of their batch never is acknowledged.
        """
        self.add_part(block, rows)
        key = (block.ledger_id, block.first_entry_id)
        if block.is_batch and key in self._partial:
            self._moved[key] = union(self._moved.get(key, ()), ranges_of(rows))
            self.count += 1

    def _add_batch(self, ledger_id: int, entry_id: int, batch_size: int) -> None:
        """Acknowledge all rows of a batch."""
        self._look_at_flags()
        if (ledger_id, entry_id) in self._partial:
            self.add_rows(ledger_id, entry_id, ((0, batch_size),), batch_size)
        else:
            self.count += batch_size - 1  # the entry counts as one
            self.add(ledger_id, entry_id)

    def _complete(self, key: tuple[int, int]) -> None:
        del self._partial[key]
        self._dirty.discard(key)
        self._shared.discard(key)
        self.count -= 1  # its rows are counted already
        self.add(*key)

    def add_cumulative(
        self, ledger_id: int, entry_id: int, row: int = WHOLE_ENTRY, batch_size: int = 0
    ) -> None:
        """Acknowledge everything up to and including this message.

        A position older than the last one changes nothing. Without `batch_index_ack` a row inside a batch
        acknowledges the entries before it, and its own rows up to it count as acknowledged here only, unless
        the batch is shared. Of a batch of unknown size (0) the row is sent to the dispatcher in any case.
        """
        self._look_at_flags()
        known = self._partial.get((ledger_id, entry_id))
        batch_size = batch_size or (0 if known is None else len(known.acknowledged))
        if row != WHOLE_ENTRY and 0 < batch_size <= row + 1:
            row = WHOLE_ENTRY
        for key in [key for key in self._partial if key < (ledger_id, entry_id)]:
            del self._partial[key]
            self._dirty.discard(key)
        key = (ledger_id, entry_id)
        if row == WHOLE_ENTRY:
            self._partial.pop(key, None)
            self._dirty.discard(key)
        elif batch_size:
            has_others = key in self._dirty
            self.add_rows(ledger_id, entry_id, [(0, row + 1)], batch_size)
            if not self._batch_index_ack:
                entry_id, row = entry_id - 1, WHOLE_ENTRY
            elif not has_others:
                self._dirty.discard(key)  # the position says the same
        position = (ledger_id, entry_id, row)
        if self._cumulative is None or _reach(position) > _reach(self._cumulative):
            self._cumulative = position
            self.count += 1

    def outstanding_rows(self, ledger_id: int, entry_id: int, rows: RowSet, batch_size: int = 0) -> RowSet:
        """Of these rows of a batch, those not acknowledged here."""
        self._look_at_flags()
        key = (ledger_id, entry_id)
        if batch_size and (acknowledged := self._unsized_sent.pop(key, None)):
            self.add_rows(ledger_id, entry_id, acknowledged, batch_size)
            if key not in self._partial:
                return 0
        batch = self._partial.get(key)
        return rows if batch is None else rows & ~of_ranges(batch.rows())

    def entries_in(self, ledger_id: int, first: int, count: int) -> RowSet:
        """Which of `count` entries from `first` on were acknowledged since `drain`, as bits.

        As a whole: of a batch all messages.
        """
        if not self.count:
            return 0
        self._look_at_flags()
        found = 0
        if self._cumulative is not None:
            found = entries_up_to(self._cumulative, ledger_id, first, count)
        if ledger_id == self._ledger:
            found |= span_of(self._first, self._last, first, count)
            for entry_id in self._singles:
                if 0 <= entry_id - first < count:
                    found |= 1 << (entry_id - first)
        ranges = self._ranges
        for at in range(0, len(ranges), 3):
            if ranges[at] == ledger_id:
                found |= span_of(ranges[at + 1], ranges[at + 2], first, count)
        flags = self._entries.get((ledger_id, first))
        if flags is not None:
            found |= of_ranges(_ranges_of_flags(flags))
        return found & span(0, count)

    def drain(self) -> AckBatch | None:
        """Take out everything gathered since the last call, or None.

        A repeat is harmless, so the batch may be sent again.
        """
        if not self.count:
            return None
        self._look_at_flags()
        entries = self._drain_entries()
        batch_rows = [(*key, self._partial[key].rows()) for key in self._dirty]
        batch_rows += [(*key, rows) for key, rows in self._unsized.items()]
        batch_rows.sort()
        for key, rows in self._unsized.items():
            self._unsized_sent[key] = union(self._unsized_sent.pop(key, ()), rows)
        while len(self._unsized_sent) > MAX_UNSIZED:
            del self._unsized_sent[next(iter(self._unsized_sent))]
        cumulative = self._cumulative
        moved = tuple((*key, rows) for key, rows in sorted(self._moved.items()))
        self._moved.clear()
        self._dirty.clear()
        self._unsized.clear()
        self._cumulative = None
        self.count = 0
        if not (entries.ranges or entries.bits or batch_rows or moved) and cumulative is None:
            return None
        return AckBatch(entries.ranges, batch_rows, cumulative, entries.bits, moved)

    def forget_gone(self, is_held: Callable[[int, int], object]) -> None:
        """Forget rows of batches that are not held any more, if there are many.

        Such a batch failed and was finished elsewhere, or is finished here. Call it behind `drain`.
        """
        if len(self._partial) > self._most_partial:
            self._look_at_flags()
            gone = [key for key in self._partial if not is_held(*key) and key not in self._dirty]
            for key in gone:
                del self._partial[key]
            self._most_partial = MAX_GONE + 2 * len(self._partial)

    def _drain_entries(self) -> EntrySet:
        ledger_id = self._ledger
        self._start_range(ledger_id, 0, -1)
        self._ledger = -1
        ranges, self._ranges = self._ranges, []
        singles, self._singles = self._singles, array("q")
        bits: list[EntryBits] = []
        for flags in neighbours(self._entries):
            known = flagged(*flags)
            bits += known.bits
            for entries in known.ranges:
                ranges += entries
        self._entries.clear()
        drained = entry_set(ranges, ledger_id, singles)
        return joined(drained, bits) if bits else drained

    def clear(self) -> None:
        """Forget everything: after a seek, acknowledged messages come again."""
        self._look_at_flags()
        self.drain()
        self._partial.clear()
        self._shared.clear()
        self._unsized_sent.clear()


def entries_up_to(position: tuple[int, int, int], ledger_id: int, first: int, count: int) -> RowSet:
    """Which of `count` entries from `first` on a cumulative position covers whole, as bits."""
    of_ledger, entry_id, row = position
    if ledger_id != of_ledger:
        return span(0, count) if ledger_id < of_ledger else 0
    return span_of(first, entry_id if row == WHOLE_ENTRY else entry_id - 1, first, count)


def _reach(position: tuple[int, int, int]) -> tuple[int, int, float]:
    ledger_id, entry_id, row = position
    return ledger_id, entry_id, float("inf") if row == WHOLE_ENTRY else row
