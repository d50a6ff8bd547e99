"""How often entries were redelivered, and how often single messages of batches failed."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from pulsar_ray.model.message_id import Position
from pulsar_ray.model.row_ranges import RowFailures, RowRanges


class RedeliveryCounts:
    """Counts above zero, as runs (ledger, first, last, count) as long as can be.

    They cost nothing while nothing failed.
    """

    __slots__ = ("_row_failures", "_runs", "has_any")

    def __init__(self) -> None:
        self._runs: SortedDict = SortedDict()  # (ledger, first) -> (last, count)
        self._row_failures: SortedDict = SortedDict()  # position -> RowFailures
        self.has_any = False
        """Whether anything has failed."""

    def __len__(self) -> int:
        return len(self._runs)

    def set(self, ledger_id: int, first: int, last: int, count: int) -> None:
        """Give entries first..last this count; 0 forgets them."""
        if self._runs:
            self._cut_out(ledger_id, first, last)
            if count:
                first, last = self._joined(ledger_id, first, last, count)
        if count:
            self._runs[(ledger_id, first)] = (last, count)
        self._changed()

    def of(self, ledger_id: int, entry_id: int) -> int:
        """The count of one entry."""
        if not self._runs:
            return 0
        return self.runs(ledger_id, entry_id, entry_id)[0][2]

    def runs(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int, int]]:
        """Entries first..last as (first, last, count), without gaps: zeros are included."""
        found: list[tuple[int, int, int]] = []
        at = first
        for start, end, count in self._overlapping(ledger_id, first, last):
            if start > at:
                found.append((at, start - 1, 0))
            found.append((max(start, at), min(end, last), count))
            at = min(end, last) + 1
        if at <= last:
            found.append((at, last, 0))
        return found

    def row_failures(self, position: Position) -> RowFailures:
        """The known failures of the messages of one batch entry."""
        failures: RowFailures = self._row_failures.get(position, ()) if self._row_failures else ()
        return failures

    def add_row_failures(self, position: Position, rows: RowRanges) -> RowFailures:
        """Count one more failure for these messages of a batch.

        Returns all failures that are known of the entry.
        """
        by_row: dict[int, int] = {}
        for start, end, count in self.row_failures(position):
            by_row.update(dict.fromkeys(range(start, end), count))
        for start, end in rows:
            for row in range(start, end):
                by_row[row] = by_row.get(row, 0) + 1
        merged: list[tuple[int, int, int]] = []
        for row in sorted(by_row):
            if merged and merged[-1][1] == row and merged[-1][2] == by_row[row]:
                merged[-1] = (merged[-1][0], row + 1, by_row[row])
            else:
                merged.append((row, row + 1, by_row[row]))
        self.set_row_failures(position, tuple(merged))
        return tuple(merged)

    def set_row_failures(self, position: Position, failures: RowFailures) -> None:
        """Replace what is known of a batch entry."""
        self._row_failures[position] = failures
        self.has_any = True

    def discard(self, ledger_id: int, first: int, last: int) -> None:
        """Forget entries first..last: they were acknowledged."""
        if self._runs:
            self._cut_out(ledger_id, first, last)
        if self._row_failures:
            gone = list(self._row_failures.irange(Position(ledger_id, first), Position(ledger_id, last)))
            for position in gone:
                del self._row_failures[position]
        self._changed()

    def discard_up_to(self, position: Position) -> None:
        """Forget everything at or below `position`."""
        while self._runs:
            (ledger_id, first), (last, count) = self._runs.peekitem(0)
            if (ledger_id, first) > position:
                break
            del self._runs[(ledger_id, first)]
            if ledger_id == position.ledger_id and last > position.entry_id:
                self._runs[(ledger_id, position.entry_id + 1)] = (last, count)
                break
        while self._row_failures and self._row_failures.peekitem(0)[0] <= position:
            self._row_failures.popitem(0)
        self._changed()

    def clear(self) -> None:
        """Forget everything."""
        self._runs.clear()
        self._row_failures.clear()
        self.has_any = False

    def _changed(self) -> None:
        self.has_any = bool(self._runs or self._row_failures)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """(ledger, first, last, count) in the order of the log."""
        for (ledger_id, first), (last, count) in self._runs.items():
            yield ledger_id, first, last, count

    def all_row_failures(self) -> Iterator[tuple[Position, RowFailures]]:
        """The known failures of each batch, in the order of the log."""
        yield from self._row_failures.items()

    def _overlapping(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int, int]]:
        if not self._runs:
            return []
        # The run that begins at or before `first` may reach into the range.
        low = next(self._runs.irange(None, (ledger_id, first), reverse=True), (ledger_id, first))
        found: list[tuple[int, int, int]] = []
        for key in self._runs.irange(low, (ledger_id, last)):
            run_last, count = self._runs[key]
            if key[0] == ledger_id and run_last >= first:
                found.append((key[1], run_last, count))
        return found

    def _joined(self, ledger_id: int, first: int, last: int, count: int) -> tuple[int, int]:
        """How far entries reach with their neighbours of this count; the run behind them goes."""
        runs = self._runs
        before = runs.bisect_left((ledger_id, first)) - 1
        if before >= 0:
            key, (end, of_run) = runs.peekitem(before)
            if key[0] == ledger_id and end == first - 1 and of_run == count:
                first = key[1]
        end, of_run = runs.get((ledger_id, last + 1), (last, 0))
        if of_run == count:
            del runs[(ledger_id, last + 1)]
            last = end
        return first, last

    def _cut_out(self, ledger_id: int, first: int, last: int) -> None:
        for run_first, run_last, count in self._overlapping(ledger_id, first, last):
            del self._runs[(ledger_id, run_first)]
            if run_first < first:
                self._runs[(ledger_id, run_first)] = (first - 1, count)
            if run_last > last:
                self._runs[(ledger_id, last + 1)] = (run_last, count)
