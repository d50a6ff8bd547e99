"""A set of a managed ledger's entries, cheap for runs and for scattered entries."""

from __future__ import annotations

from collections.abc import Iterator

from pulsar_ray.model.position import EARLIEST, Position
from pulsar_ray.model.scattered_ints import PieceColumns, ScatteredInts


class PositionRanges:
    """Entries of each ledger as disjoint closed ranges.

    Where ranges are many and short, bits stand for them.

    A range costs 16 bytes, and much less where many are close together. Adding among 100,000 of one ledger
    moves less than a megabyte.
    """

    __slots__ = ("_entries", "_ledgers")

    def __init__(self) -> None:
        self._ledgers: dict[int, ScatteredInts] = {}
        self._entries = 0

    def add(self, ledger_id: int, first: int, last: int) -> int:
        """Add entries first..last and return how many were not contained. ValueError if last < first."""
        if last < first:
            raise ValueError(
                f"entries {first}..{last} of ledger {ledger_id}: the last comes before the first"
            )
        added = self._of(ledger_id).add(first, last)
        self._entries += added
        return added

    def add_bits(self, ledger_id: int, origin: int, bits: int) -> int:
        """Add entry origin + n for each set bit n; returns the number added.

        Entries that were contained before do not count.

        Costs in proportion to the distance between the lowest and the highest, by the thousand.
        """
        added = self._of(ledger_id).add_bits(origin, bits) if bits else 0
        self._entries += added
        return added

    def add_columns(self, ledger_id: int, columns: PieceColumns) -> int:
        """Add many pieces at once; returns how many entries were not contained."""
        added = self._of(ledger_id).add_columns(columns) if columns.firsts else 0
        self._entries += added
        return added

    def _of(self, ledger_id: int) -> ScatteredInts:
        entries = self._ledgers.get(ledger_id)
        if entries is None:
            entries = self._ledgers[ledger_id] = ScatteredInts()
        return entries

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the entry is in the set."""
        entries = self._ledgers.get(ledger_id)
        return entries is not None and entry_id in entries

    def run_end(self, ledger_id: int, entry_id: int) -> int | None:
        """The last entry of the run that begins at `entry_id`; None without one."""
        entries = self._ledgers.get(ledger_id)
        return None if entries is None else entries.run_end(entry_id)

    @property
    def end(self) -> Position:
        """The last entry, EARLIEST if there is none."""
        last = max((ledger_id for ledger_id, entries in self._ledgers.items() if entries.count), default=None)
        return EARLIEST if last is None else Position(last, self._ledgers[last].last)

    def missing(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """The closed ranges of first..last that are not contained, in order."""
        entries = self._ledgers.get(ledger_id)
        if entries is None:
            return [(first, last)] if first <= last else []
        return entries.missing(first, last)

    def remove_up_to(self, position: Position) -> int:
        """Forget all entries up to and including `position`; returns how many were contained."""
        before = self._entries
        for ledger_id in [ledger_id for ledger_id in self._ledgers if ledger_id < position.ledger_id]:
            self._entries -= self._ledgers.pop(ledger_id).count
        entries = self._ledgers.get(position.ledger_id)
        if entries is not None:
            self._entries -= entries.remove_up_to(position.entry_id)
            if not entries.count:
                del self._ledgers[position.ledger_id]
        return before - self._entries

    def clear(self) -> None:
        """Forget all entries."""
        self._ledgers.clear()
        self._entries = 0

    def count(self) -> int:
        """How many entries are contained."""
        return self._entries

    def __bool__(self) -> bool:
        return self._entries > 0

    def __len__(self) -> int:
        """How many ranges they make up. Looks at all of them."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(ledger, first, last) in the order of the log."""
        for ledger_id in sorted(self._ledgers):
            for first, last in self._ledgers[ledger_id]:
                yield ledger_id, first, last

    def columns(self) -> Iterator[tuple[int, PieceColumns]]:
        """(ledger, its entries as they are kept) in the order of the log."""
        for ledger_id in sorted(self._ledgers):
            yield ledger_id, self._ledgers[ledger_id].columns()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositionRanges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        ranges = list(self)
        shown = ", ".join(f"{ledger}:{first}-{last}" for ledger, first, last in ranges[:8])
        return f"PositionRanges({shown}{', ...' if len(ranges) > 8 else ''})"
