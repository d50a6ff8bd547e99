"""Delivered rows that are not acknowledged yet.

A consumer declares them when it attaches again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

from pulsar_ray.model.entry_sets import EntryBits
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import RowSet, of_ranges, ranges_of

MAX_DECLARED_RANGES = 90_000

DeclaredRows = tuple[int, int, RowRanges]
"""(ledger id, first entry id of the block, rows), as a packet has them."""

_Key = tuple[int, int]
_FEW = 64


class UnackedRows:
    """Holds the unacknowledged rows by block; the consumer's lock guards it.

    Costs are per block, or per range of entries that lie apart; least while blocks come in order, and single
    messages among them are acknowledged from their start on.
    """

    def __init__(self) -> None:
        # (ledger id, first entry id) -> [last entry id, rows are entries, rows, messages of the block]
        self._blocks: dict[_Key, list[Any]] = {}
        # Its keys, and some that are gone; all of them and in order only if `_is_ordered`.
        self._order: list[_Key] = []
        self._is_ordered = True

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, ledger_id: int, first_entry_id: int, entries: int, rows: RowSet, messages: int) -> None:
        """Hold rows of a block that were delivered."""
        key = (ledger_id, first_entry_id)
        held = self._blocks.get(key)
        if held is not None:
            held[2] |= rows
            return
        self._blocks[key] = [first_entry_id + entries - 1, entries > 1, rows, messages]
        order = self._order
        if order and key <= order[-1]:
            self._is_ordered = False
        else:
            order.append(key)

    def batch_size(self, ledger_id: int, entry_id: int) -> int:
        """Messages of a batch that is held, 0 if it is not."""
        held = self._blocks.get((ledger_id, entry_id))
        return 0 if held is None or held[1] else int(held[3])

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
        if len(self._order) > 2 * len(self._blocks) + _FEW:
            self._reorder()

    def _remove(self, key: _Key, entries: list[tuple[int, int]]) -> None:
        held, origin = self._blocks[key], key[1]
        if held[1]:
            held[2] &= ~of_ranges(tuple((first - origin, last - origin + 1) for first, last in entries))
            if held[2]:
                return
        self._delete(key)

    def declared(self) -> list[DeclaredRows]:
        """All rows in order, as far as they fit into one packet.

        Rows that are left out come again.
        """
        declared: list[DeclaredRows] = []
        ranges = 0
        for ledger_id, first in sorted(self._blocks):
            held = self._blocks[ledger_id, first]
            rows = ranges_of(held[2])
            ranges += len(rows) + 1
            if ranges > MAX_DECLARED_RANGES:
                break
            declared.append((ledger_id, first, rows))
        return declared

    def clear(self) -> None:
        """Hold nothing any more, behind a seek, or when all was given back."""
        self._blocks.clear()
        self._order.clear()
        self._is_ordered = True
