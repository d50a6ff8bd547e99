"""The changes of a cursor since its last flush, merged: the next delta record."""

from __future__ import annotations

from pulsar_ray.model.message_id import Position
from pulsar_ray.model.position_ranges import PositionRanges
from pulsar_ray.model.row_ranges import RowFailures, RowRanges

_MANY = 128
_WIDE = 65_536
"""Keep less than `_MANY` sets of scattered entries as they came.

None of the sets is over more than `_WIDE` entries.
"""


class CursorChanges:
    """Collects changes; a cursor that is never stored collects nothing."""

    __slots__ = (
        "_deleted",
        "_is_recorded",
        "_scattered",
        "batches",
        "consumers",
        "counts",
        "has_suspects",
        "is_reset",
        "row_failures",
    )

    def __init__(self, is_recorded: bool) -> None:
        self._is_recorded = is_recorded
        self.is_reset = False
        self.has_suspects = False
        """Whether groups of suspects came or went."""
        self._deleted = PositionRanges()
        self._scattered: list[tuple[int, int, int]] = []
        """Scattered entries that are not in `_deleted` yet.

        Mark-delete will have passed most of them when they are asked for.
        """
        self.counts: list[tuple[int, int, int, int]] = []
        self.batches: dict[Position, RowRanges] = {}
        self.row_failures: dict[Position, RowFailures] = {}
        self.consumers: set[int] = set()
        """Ids of consumers that came or went; the cursor knows which."""

    def add_deleted(self, ledger_id: int, first: int, last: int) -> None:
        """Entries were acknowledged; those below mark-delete do not matter."""
        if self._is_recorded:
            self._deleted.add(ledger_id, first, last)

    def add_deleted_bits(self, ledger_id: int, origin: int, entries: int, mark_delete: Position) -> None:
        """Add deleted scattered entries: entry origin + n for each bit n that is set."""
        if self._is_recorded:
            self._scattered.append((ledger_id, origin, entries))
            if len(self._scattered) >= _MANY or entries.bit_length() > _WIDE:
                self._merge(mark_delete)

    def deleted_behind(self, mark_delete: Position) -> PositionRanges:
        """The entries behind mark-delete that were acknowledged."""
        self._merge(mark_delete)
        self._deleted.remove_up_to(mark_delete)
        return self._deleted

    def _merge(self, mark_delete: Position) -> None:
        scattered, self._scattered = self._scattered, []
        for ledger_id, origin, entries in scattered:
            if (ledger_id, origin + entries.bit_length() - 1) > mark_delete:
                self._deleted.add_bits(ledger_id, origin, entries)

    def add_count(self, ledger_id: int, first: int, last: int, count: int) -> None:
        """Entries have a new redelivery count."""
        if not self._is_recorded:
            return
        if self.counts:
            ledger, start, end, known = self.counts[-1]
            if ledger == ledger_id and end == first - 1 and known == count:
                # Of messages that fail one after the other.
                self.counts[-1] = (ledger, start, last, count)
                return
        self.counts.append((ledger_id, first, last, count))

    def set_batch(self, position: Position, rows: RowRanges) -> None:
        """All rows of a batch acknowledged durably by now."""
        if self._is_recorded:
            self.batches[position] = rows

    def set_row_failures(self, position: Position, failures: RowFailures) -> None:
        """All failures of a batch's messages by now."""
        if self._is_recorded:
            self.row_failures[position] = failures

    def add_consumer(self, consumer_id: int) -> None:
        """A consumer came or went."""
        if self._is_recorded:
            self.consumers.add(consumer_id)

    def set_suspects(self) -> None:
        """Groups of suspects came or went; the cursor knows them."""
        self.has_suspects = self._is_recorded

    def reset(self) -> None:
        """The cursor started over; what was acknowledged before does not count any more."""
        self.is_reset = True
        self._deleted.clear()
        self._scattered.clear()
        self.counts.clear()
        self.batches.clear()
        self.row_failures.clear()
