"""Delivered rows that are not acknowledged yet.

A consumer declares them when it attaches again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from pulsar_ray.model.row_ranges import RowFailures, RowRanges
from pulsar_ray.model.row_sets import EntryBits, RowSet, of_ranges, ranges_of

MAX_DECLARED_RANGES = 90_000

DeclaredRows = tuple[int, int, RowRanges]
"""(ledger id, first entry id of the block, rows), as a packet has them."""

_Key = tuple[int, int]
_FEW = 64
_KEEP_COUNTS = 16
"""Most deliveries of a block whose counts are known."""


class HeldBlock(NamedTuple):
    """A block that is held and cannot be decoded."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    rows: RowRanges
    messages: int
    is_batch: bool
    redelivery_count: int


class UnackedRows:
    """Holds the unacknowledged rows by block; the consumer's lock guards it.

    Costs are per block, or per range of entries that lie apart; least while blocks come in order, and single
    messages among them are acknowledged from their start on.
    """

    def __init__(self) -> None:
        # (ledger id, first entry id) -> [last entry id, rows are entries, rows, messages of the block]
        self._blocks: dict[_Key, list[Any]] = {}
        self._failures: dict[_Key, RowFailures] = {}
        # Batches of which others may have the rest.
        self._parts: set[_Key] = set()
        # Redelivery counts above 0 of rows, the newest first.
        self._counts: dict[_Key, list[tuple[RowSet, int]]] = {}
        # Blocks that cannot be decoded, and the redelivery count that each came with.
        self._unreadable: dict[_Key, int] = {}
        # Its keys, and some that are gone; all of them and in order only if `_is_ordered`.
        self._order: list[_Key] = []
        self._is_ordered = True

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def has_redelivered(self) -> bool:
        """Whether rows are held that were redelivered."""
        return bool(self._counts)

    def add(self, ledger_id: int, first_entry_id: int, entries: int, rows: RowSet, messages: int) -> None:
        """Hold rows of a block that were delivered."""
        key = (ledger_id, first_entry_id)
        held = self._blocks.get(key)
        if held is not None:
            held[2] |= rows
            if key in self._counts:
                # Their counts are those of this delivery: they are noted next, unless they are 0.
                self._counts[key] = [(r & ~rows, count) for r, count in self._counts[key] if r & ~rows]
            return
        self._blocks[key] = [first_entry_id + entries - 1, entries > 1, rows, messages]
        order = self._order
        if order and key <= order[-1]:
            self._is_ordered = False
        else:
            order.append(key)

    def note_failures(self, ledger_id: int, entry_id: int, failures: RowFailures) -> None:
        """Note how often messages of a batch that is held failed before."""
        self._failures[(ledger_id, entry_id)] = failures

    def note_part(self, ledger_id: int, entry_id: int) -> None:
        """Note that a batch that is held was delivered in part."""
        self._parts.add((ledger_id, entry_id))

    def note_unreadable(self, ledger_id: int, first_entry_id: int, redelivery_count: int) -> bool:
        """Hold all of a block that cannot be decoded, if something of it is held.

        False if that was noted before.
        """
        key = (ledger_id, first_entry_id)
        held = self._blocks.get(key)
        if held is None:
            return True
        if self._unreadable.get(key) == redelivery_count:
            return False
        self._unreadable[key] = redelivery_count
        held[2] = (1 << held[3]) - 1
        return True

    def unreadable(self) -> list[_Key]:
        """The blocks that are held and cannot be decoded."""
        return list(self._unreadable)

    def unreadable_at(self, ledger_id: int, entry_id: int) -> HeldBlock | None:
        """The block at an entry, if it is held and cannot be decoded."""
        for key in self._overlapping(ledger_id, entry_id, entry_id) if self._unreadable else ():
            if key in self._unreadable:
                last, _, rows, messages = self._blocks[key]
                is_batch = messages > 1 and last == key[1]
                return HeldBlock(*key, last, ranges_of(rows), messages, is_batch, self._unreadable[key])
        return None

    def note_count(self, ledger_id: int, first_entry_id: int, rows: RowSet, redelivery_count: int) -> None:
        """Note how often rows of a block that are held were redelivered, if they were."""
        counts = self._counts.setdefault((ledger_id, first_entry_id), [])
        counts.insert(0, (rows, redelivery_count))
        del counts[_KEEP_COUNTS:]

    def count_of(self, ledger_id: int, entry_id: int, batch_row: int = -1) -> int:
        """Return the redelivery count of an entry, or of one row of a batch.

        -1 if it is not held. Parts of a batch have counts of their own; without a row it is the last one's.
        """
        for key in self._overlapping(ledger_id, entry_id, entry_id):
            held = self._blocks[key]
            if held[1]:
                batch_row = entry_id - key[1]
            row = held[2] if batch_row < 0 else 1 << batch_row
            if held[2] & row:
                return next((count for rows, count in self._counts.get(key, ()) if rows & row), 0)
        return -1

    def failures_of(self, ledger_id: int, entry_id: int, rows: RowRanges) -> int:
        """How often those of these messages of a batch failed that failed most often."""
        known = self._failures.get((ledger_id, entry_id), ()) if self._failures else ()
        found = (n for a, b, n in known if any(a < end and first < b for first, end in rows))
        return max(found, default=0)

    def batch_size(self, ledger_id: int, entry_id: int) -> int:
        """Messages of a batch that is held, 0 if it is not."""
        held = self._blocks.get((ledger_id, entry_id))
        return 0 if held is None or held[1] else int(held[3])

    def block_of(self, ledger_id: int, entry_id: int) -> range | None:
        """The entries of the block of several that holds an entry, if any is held."""
        held = self._blocks.get((ledger_id, entry_id))
        keys = self._overlapping(ledger_id, entry_id, entry_id) if held is None else [(ledger_id, entry_id)]
        for key in keys:
            last_entry_id, is_of_entries, *_ = self._blocks[key]
            if is_of_entries:
                return range(key[1], last_entry_id + 1)
        return None

    def rows_of(self, ledger_id: int, first_entry_id: int) -> RowSet:
        """The rows of a block that are held."""
        held = self._blocks.get((ledger_id, first_entry_id))
        return 0 if held is None else int(held[2])

    def entries_between(self, ledger_id: int, first: int, last: int) -> list[int]:
        """The blocks of one entry that are held, among entries first..last."""
        return [key[1] for key in self._overlapping(ledger_id, first, last) if key[1] >= first]

    def delivered_since(self, ledger_id: int, entry_id: int, rows: RowRanges, count: int) -> RowSet | None:
        """Those of failed rows that were delivered with a higher count meanwhile.

        None stands for the whole entry. Other parts of a batch, which come with the failures of all, do not
        count.
        """
        if not self._counts or count < 0:
            return 0
        held = self._blocks.get((ledger_id, entry_id))
        if held is None or (held[1] and not rows):
            return None if self.count_of(ledger_id, entry_id) > count else 0
        newer = self._delivered_above((ledger_id, entry_id), count)
        if rows:
            return newer & of_ranges(rows)
        return 0 if held[2] & ~newer else None

    def _delivered_above(self, key: _Key, count: int) -> RowSet:
        """The rows of a block that were last delivered with a higher count."""
        newer = known = 0
        for rows, delivered in self._counts.get(key, ()):
            if delivered > count:
                newer |= rows & ~known
            known |= rows
        return newer

    def remove_failed(self, ledger_id: int, entry_id: int, rows: RowRanges, count: int = -1) -> None:
        """Remove what comes again: rows that are entries, or the whole of any other entry.

        Of a batch those parts stay that were delivered with a higher count than the one that failed.
        """
        held = self._blocks.get((ledger_id, entry_id))
        if rows and held is not None and held[1]:
            self.remove_entries([(ledger_id, entry_id + first, entry_id + end - 1) for first, end in rows])
            return
        if held is not None and not held[1] and count >= 0:
            kept = held[2] & self._delivered_above((ledger_id, entry_id), count)
            if kept:
                held[2] = kept
                return
        self.remove_entries([(ledger_id, entry_id, entry_id)])

    def remove_entries(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Remove whole entries that were acknowledged.

        Ranges in order cost one pass over each block's rows.
        """
        gone: dict[_Key, list[tuple[int, int]]] = {}
        inside: _Key | None = None
        end = -1
        for ledger_id, first, last in ranges:
            if inside is not None and ledger_id == inside[0] and inside[1] <= first and last <= end:
                gone[inside].append((first, last))
                continue
            first = self._remove_single(ledger_id, first, last)
            if first > last:
                continue
            for inside in self._overlapping(ledger_id, first, last):
                gone.setdefault(inside, []).append((first, last))
                end = self._blocks[inside][0]
        for key, entries in gone.items():
            self._remove(key, entries)

    def remove_bits(self, bits: EntryBits) -> None:
        """Remove scattered entries, at a cost in proportion to the blocks."""
        ledger_id, origin, data = bits
        entries = int.from_bytes(data, "little")
        for key in self._overlapping(ledger_id, origin, origin + entries.bit_length() - 1):
            held = self._blocks[key]
            offset = key[1] - origin
            gone = entries >> offset if offset >= 0 else entries << -offset
            if held[1]:
                held[2] &= ~gone
            if not held[2] or (gone & 1 and not held[1]):
                self._delete(key)

    def remove_rows(self, ledger_id: int, entry_id: int, rows: RowSet) -> None:
        """Remove rows of a batch, or without rows the entry."""
        if not rows:
            self.remove_entries([(ledger_id, entry_id, entry_id)])
            return
        held = self._blocks.get((ledger_id, entry_id))
        if held is not None:
            held[2] &= ~rows
            if not held[2]:
                self._delete((ledger_id, entry_id))

    def remove_up_to(self, ledger_id: int, entry_id: int) -> None:
        """Remove everything up to and including this entry."""
        keys = self._keys()
        for key in keys[: bisect_right(keys, (ledger_id, entry_id))]:
            if key not in self._blocks:
                continue
            if key[0] < ledger_id:
                self._delete(key)
            else:
                self._remove(key, [(key[1], entry_id)])

    def _remove_single(self, ledger_id: int, first: int, last: int) -> int:
        """Remove blocks of one entry that begin this range; returns the entry behind them."""
        while first <= last:
            held = self._blocks.get((ledger_id, first))
            if held is None or held[1]:
                break
            self._delete((ledger_id, first))
            first += 1
        return first

    def _overlapping(self, ledger_id: int, first: int, last: int) -> list[_Key]:
        keys, blocks = self._keys(), self._blocks
        start = bisect_left(keys, (ledger_id, first))
        found = [key for key in keys[start : bisect_right(keys, (ledger_id, last))] if key in blocks]
        before = next((keys[at] for at in range(start - 1, -1, -1) if keys[at] in blocks), None)
        if before is not None and before[0] == ledger_id and blocks[before][0] >= first:
            found.insert(0, before)
        return found

    def _keys(self) -> list[_Key]:
        """The keys in order, with few that are gone."""
        held = len(self._blocks)
        if not self._is_ordered or len(self._order) - held > _FEW + held // 16:
            self._reorder()
        return self._order

    def _reorder(self) -> None:
        self._order = sorted(self._blocks)
        self._is_ordered = True

    def _delete(self, key: _Key) -> None:
        del self._blocks[key]
        self._parts.discard(key)
        if self._unreadable:
            self._unreadable.pop(key, None)
        if self._failures:
            self._failures.pop(key, None)
        if self._counts:
            self._counts.pop(key, None)
        if len(self._order) > 2 * len(self._blocks) + _FEW:
            self._reorder()

    def _remove(self, key: _Key, entries: list[tuple[int, int]]) -> None:
        held, origin = self._blocks[key], key[1]
        if held[1]:
            held[2] &= ~of_ranges(tuple((first - origin, last - origin + 1) for first, last in entries))
            if held[2]:
                return
        self._delete(key)

    def declared(self) -> tuple[list[DeclaredRows], list[DeclaredRows]]:
        """All rows in order, as far as they fit into one packet.

        Those of batches that were given in part stand in the second list.
        Of any other batch the rows that are not declared are acknowledged. Blocks that are left out come
        again.
        """
        declared: list[DeclaredRows] = []
        parts: list[DeclaredRows] = []
        ranges = 0
        for ledger_id, first in sorted(self._blocks):
            held = self._blocks[ledger_id, first]
            rows = ranges_of(held[2])
            ranges += len(rows) + 1
            if ranges > MAX_DECLARED_RANGES:
                break
            chosen = parts if (ledger_id, first) in self._parts else declared
            chosen.append((ledger_id, first, rows))
        return declared, parts

    def clear(self) -> None:
        """Hold nothing any more, behind a seek, or when all was given back."""
        self._blocks.clear()
        self._parts.clear()
        self._failures.clear()
        self._unreadable.clear()
        self._counts.clear()
        self._order.clear()
        self._is_ordered = True
