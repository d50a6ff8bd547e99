"""A set of a managed ledger's entries, cheap for runs and for scattered entries."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from pulsar_ray.model import row_sets
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.model.row_sets import merged_runs
from pulsar_ray.numpy_on_demand import np

_SHIFT = 10
_WIDTH = 1 << _SHIFT
_INNER = _WIDTH - 1
_FULL = (1 << _WIDTH) - 1
_FEW_RUNS = 16
"""Keep a window's runs as ranges up to this number of them.

So few take less memory than the window's bits.
"""
MANY_PIECES = 64
"""From so many on numpy is quicker than a loop."""


class Piece(NamedTuple):
    """The numbers first..last, or those whose bit is set, bit 0 being `first`."""

    first: int
    last: int
    bits: int | None


class PieceColumns(NamedTuple):
    """Pieces in order: first and last numbers, and bits by place."""

    firsts: array[int]
    lasts: array[int]
    bits: dict[int, int]

    def pieces(self) -> Iterator[Piece]:
        """Yield them one by one."""
        for place, (first, last) in enumerate(zip(self.firsts, self.lasts, strict=True)):
            yield Piece(first, last, self.bits.get(place))

    def held(self) -> int:
        """How many numbers they hold."""
        if len(self.firsts) < MANY_PIECES:
            held = sum(self.lasts) - sum(self.firsts) + len(self.firsts)
        else:
            held = int(np.subtract(self.lasts, self.firsts).sum()) + len(self.firsts)
        for place, bits in self.bits.items():
            held += bits.bit_count() - (self.lasts[place] - self.firsts[place] + 1)
        return held


class ScatteredInts:
    """A set as disjoint closed ranges, found by bisection, and as windows of bits.

    Bits stand for a window of 1,024 numbers in which many ranges lie.

    A range takes 16 bytes, and so does the piece of a window with bits, besides these.

    A window either has bits, and these are one piece, or belongs to pieces that are ranges. Pieces may touch.
    """

    __slots__ = ("_bits", "_firsts", "_lasts", "count")

    def __init__(self) -> None:
        # Two parallel sorted arrays, and by window the bits of the piece that lies in it.
        self._firsts = array("q")
        self._lasts = array("q")
        self._bits: dict[int, int] = {}
        self.count = 0

    @property
    def last(self) -> int:
        """The highest number, -1 if there is none."""
        return self._lasts[-1] if self._lasts else -1

    # ---- putting in

    def add(self, first: int, last: int) -> int:
        """Add first..last, not negative; returns how many were not contained."""
        before, bits = self.count, self._bits
        if not bits or (first >> _SHIFT == last >> _SHIFT and first >> _SHIFT not in bits):
            self._add_range(first, last)
            return self.count - before
        if first >> _SHIFT in bits and (first & _INNER or first + _INNER > last):
            end = min(last, first | _INNER)
            self._add_to_window(first >> _SHIFT, row_sets.span(first & _INNER, (end & _INNER) + 1))
            first = end + 1
        if first <= last and last >> _SHIFT in bits and ~last & _INNER:
            start = last & ~_INNER
            self._add_to_window(last >> _SHIFT, row_sets.span(0, (last & _INNER) + 1))
            last = start - 1
        if first <= last:
            self._add_range(first, last)
        return self.count - before

    def add_bits(self, origin: int, bits: int) -> int:
        """Add origin + n for each set bit n; returns the number added.

        Numbers that were contained before do not count.
        """
        before = self.count
        window = origin >> _SHIFT
        bits <<= origin & _INNER
        while bits:
            if part := bits & _FULL:
                self._add_to_window(window, part)
            bits >>= _WIDTH
            window += 1
        return self.count - before

    def add_columns(self, columns: PieceColumns) -> int:
        """Add pieces; returns how many numbers were not contained.

        Many cost a fraction of a microsecond each, if they come behind all that there are, or if neither has
        bits.
        """
        before = self.count
        if not (self._extend(columns) or self._merge(columns)):
            for first, last, bits in columns.pieces():
                if bits is None:
                    self.add(first, last)
                else:
                    self.add_bits(first, bits)
        return self.count - before

    def _extend(self, columns: PieceColumns) -> bool:
        """Append pieces that lie behind all others, and share no window with bits."""
        firsts, lasts, bits = columns
        if not firsts:
            return True
        if self._lasts and firsts[0] <= self._lasts[-1]:
            return False
        if self._lasts and firsts[0] >> _SHIFT == self._lasts[-1] >> _SHIFT:
            has_bits = self._firsts[-1] >> _SHIFT in self._bits or 0 in bits
            if has_bits or firsts[0] == self._lasts[-1] + 1:
                return False
        for place in bits:
            window = firsts[place] >> _SHIFT
            if (
                lasts[place] >> _SHIFT != window
                or (place and lasts[place - 1] >> _SHIFT == window)
                or (place + 1 < len(firsts) and firsts[place + 1] >> _SHIFT == window)
            ):
                return False
        self._firsts += firsts
        self._lasts += lasts
        for place, of_piece in bits.items():
            self._bits[firsts[place] >> _SHIFT] = of_piece << (firsts[place] & _INNER)
        self.count += columns.held()
        return True

    def _merge(self, columns: PieceColumns) -> bool:
        """Merge many ranges among those that there are, if nothing has bits."""
        if self._bits or columns.bits or len(columns.firsts) < MANY_PIECES:
            return False
        table = np.empty((len(self._firsts) + len(columns.firsts), 2), np.int64)
        table[:, 0] = np.concatenate((self._firsts, columns.firsts))
        table[:, 1] = np.concatenate((self._lasts, columns.lasts))
        firsts, lasts = merged_runs(table)
        self._firsts = array("q", firsts.tobytes())
        self._lasts = array("q", lasts.tobytes())
        self.count = int((lasts - firsts).sum()) + len(firsts)
        return True

    def _add_range(self, first: int, last: int) -> None:
        """Windows with bits are covered by it, or not touched by it."""
        firsts, lasts = self._firsts, self._lasts
        # Pieces i..j-1 overlap or touch it and melt into it; with bits only what lies within it.
        i = bisect_left(lasts, first - 1)
        j = bisect_right(firsts, last + 1, i)
        if self._bits and i < j:
            i += lasts[i] < first and firsts[i] >> _SHIFT in self._bits
            j -= i < j and firsts[j - 1] > last and firsts[j - 1] >> _SHIFT in self._bits
        if i == j:
            window = first >> _SHIFT
            if window == last >> _SHIFT and self._is_crowded(i, window):
                self._add_to_window(window, row_sets.span(first & _INNER, (last & _INNER) + 1))
                return
            present = 0
        else:
            present = self._forget(i, j)
            first = min(first, firsts[i])
            last = max(last, lasts[j - 1])
        if i == j:
            firsts.insert(i, first)
            lasts.insert(i, last)
        else:
            firsts[i], lasts[i] = first, last
            del firsts[i + 1 : j], lasts[i + 1 : j]
        self.count += last - first + 1 - present

    def _is_crowded(self, i: int, window: int) -> bool:
        """Whether many ranges of a window begin before piece i, or end behind it."""
        firsts, lasts = self._firsts, self._lasts
        return (i >= _FEW_RUNS and firsts[i - _FEW_RUNS] >> _SHIFT == window) or (
            i + _FEW_RUNS <= len(lasts) and lasts[i + _FEW_RUNS - 1] >> _SHIFT == window
        )

    def _forget(self, i: int, j: int) -> int:
        """Drop the bits of pieces i..j-1, which are about to go; returns their numbers' count."""
        firsts, lasts, bits = self._firsts, self._lasts, self._bits
        held = sum(lasts[i:j]) - sum(firsts[i:j]) + (j - i)
        if bits:
            for k in range(i, j):
                of_window = bits.pop(firsts[k] >> _SHIFT, None)
                if of_window is not None:
                    held -= lasts[k] - firsts[k] + 1 - of_window.bit_count()
        return held

    def _add_to_window(self, window: int, bits: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        base = window << _SHIFT
        known = self._bits.get(window)
        if known is not None and _has_many_runs(new := known | bits):
            # Still one piece, which ends nowhere else than in its window.
            if new != known:
                i = bisect_left(firsts, base)
                firsts[i], lasts[i] = base + row_sets.first(new), base + new.bit_length() - 1
                self.count += new.bit_count() - known.bit_count()
                self._bits[window] = new
            return
        end = base + _INNER
        i = bisect_left(lasts, base)
        j = bisect_right(firsts, end, i)
        if known is None:
            known = 0
            for first, last in zip(firsts[i:j], lasts[i:j], strict=True):
                known |= row_sets.span(max(first - base, 0), min(last - base, _INNER) + 1)
        new = known | bits
        if new == known:
            return
        self.count += new.bit_count() - known.bit_count()
        if _has_many_runs(new):
            self._bits[window] = new
            pieces = [(base + row_sets.first(new), base + new.bit_length() - 1)]
        else:
            self._bits.pop(window, None)
            pieces = [(base + start, base + stop) for start, stop in _runs(new)]
        self._replace(i, j, base, end, pieces)

    def _replace(self, i: int, j: int, base: int, end: int, pieces: list[tuple[int, int]]) -> None:
        """Put in a window's present content.

        Ranges that reach into the window from outside are joined or cut.
        """
        firsts, lasts, bits = self._firsts, self._lasts, self._bits
        has_bits = base >> _SHIFT in bits
        if not has_bits:
            i -= i > 0 and lasts[i - 1] == base - 1 and firsts[i - 1] >> _SHIFT not in bits
            j += j < len(firsts) and firsts[j] == end + 1 and firsts[j] >> _SHIFT not in bits
        low = firsts[i] if i < j and firsts[i] < base else base
        high = lasts[j - 1] if i < j and lasts[j - 1] > end else end
        if low < base:
            if not has_bits and pieces[0][0] == base:
                pieces[0] = (low, pieces[0][1])
            else:
                pieces.insert(0, (low, base - 1))
        if high > end:
            if not has_bits and pieces[-1][1] == end:
                pieces[-1] = (pieces[-1][0], high)
            else:
                pieces.append((end + 1, high))
        firsts[i:j] = array("q", [first for first, _ in pieces])
        lasts[i:j] = array("q", [last for _, last in pieces])

    # ---- looking

    def __contains__(self, number: int) -> bool:
        i = bisect_left(self._lasts, number)
        if i == len(self._lasts) or self._firsts[i] > number:
            return False
        bits = self._bits.get(self._firsts[i] >> _SHIFT)
        return bits is None or bool(bits >> (number & _INNER) & 1)

    def run_end(self, number: int) -> int | None:
        """The last number of the run that contains `number`, None if it is not contained."""
        if number not in self:
            return None
        firsts, lasts = self._firsts, self._lasts
        i = bisect_left(lasts, number)
        while True:
            end = lasts[i]
            bits = self._bits.get(firsts[i] >> _SHIFT)
            if bits is not None:
                end = number + _ones(bits >> (number & _INNER)) - 1
            i += 1
            if end < lasts[i - 1] or i == len(firsts) or firsts[i] != end + 1:
                return end
            number = end + 1

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The closed ranges of first..last that are not contained, in order."""
        gaps: list[tuple[int, int]] = []
        for start, end in self._ranges(bisect_left(self._lasts, first)):
            if start > last:
                break
            if start > first:
                gaps.append((first, start - 1))
            first = max(first, end + 1)
        if first <= last:
            gaps.append((first, last))
        return gaps

    def columns(self) -> PieceColumns:
        """Everything, in order; good until the set changes."""
        bits = {}
        for window, of_window in sorted(self._bits.items()):
            place = bisect_left(self._firsts, window << _SHIFT)
            bits[place] = of_window >> (self._firsts[place] & _INNER)
        return PieceColumns(self._firsts, self._lasts, bits)

    def pieces(self) -> Iterator[Piece]:
        """Everything, in order."""
        return self.columns().pieces()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Closed ranges in order, as few as possible."""
        at: tuple[int, int] | None = None
        for first, last in self._ranges(0):
            if at is not None and first == at[1] + 1:
                at = (at[0], last)
                continue
            if at is not None:
                yield at
            at = (first, last)
        if at is not None:
            yield at

    def _ranges(self, i: int) -> Iterator[tuple[int, int]]:
        """The ranges of pieces from number i on; they may touch."""
        firsts, lasts = self._firsts, self._lasts
        for k in range(i, len(firsts)):
            bits = self._bits.get(firsts[k] >> _SHIFT)
            if bits is None:
                yield firsts[k], lasts[k]
            else:
                base = firsts[k] & ~_INNER
                for start, stop in _runs(bits):
                    yield base + start, base + stop

    # ---- taking out

    def remove_up_to(self, number: int) -> int:
        """Forget everything up to and including `number`; returns how many were contained."""
        firsts, lasts = self._firsts, self._lasts
        before = self.count
        i = bisect_right(firsts, number)
        if i and lasts[i - 1] > number:
            i -= 1
            window = firsts[i] >> _SHIFT
            bits = self._bits.get(window)
            if bits is None:
                self.count -= number + 1 - firsts[i]
                firsts[i] = number + 1
            else:
                left = self._bits[window] = bits & ~((2 << (number & _INNER)) - 1)
                self.count -= bits.bit_count() - left.bit_count()
                firsts[i] = (window << _SHIFT) + row_sets.first(left)
        self.count -= self._forget(0, i)
        del firsts[:i]
        del lasts[:i]
        return before - self.count


def _ones(bits: int) -> int:
    """How many of the lowest bits are set without a gap."""
    return (~bits & (bits + 1)).bit_length() - 1


def _has_many_runs(bits: int) -> bool:
    return (bits & ~(bits << 1)).bit_count() > _FEW_RUNS


def _runs(bits: int) -> list[tuple[int, int]]:
    """First and last bit of each run."""
    if _has_many_runs(bits):
        return [(start, end - 1) for start, end in row_sets.ranges_of(bits)]
    runs = []
    at = 0
    while bits:
        skipped = row_sets.first(bits)
        bits >>= skipped
        ones = _ones(bits)
        bits >>= ones
        at += skipped + ones
        runs.append((at - ones, at - 1))
    return runs


class PositionRanges:
    """Entries of each ledger as disjoint closed ranges.

    Where ranges are many and short, bits stand for them.

    A range costs 16 bytes, and much less where many are close together. Adding among 100,000 of one ledger
    moves less than a megabyte.
    """

    __slots__ = ("_ledgers", "entries")

    def __init__(self) -> None:
        self._ledgers: dict[int, ScatteredInts] = {}
        self.entries = 0
        """How many are contained."""

    def add(self, ledger_id: int, first: int, last: int) -> int:
        """Add entries first..last and return how many were not contained. ValueError if last < first."""
        if last < first:
            raise ValueError(
                f"entries {first}..{last} of ledger {ledger_id}: the last comes before the first"
            )
        added = self._of(ledger_id).add(first, last)
        self.entries += added
        return added

    def add_bits(self, ledger_id: int, origin: int, bits: int) -> int:
        """Add entry origin + n for each set bit n; returns the number added.

        Entries that were contained before do not count.

        Costs in proportion to the distance between the lowest and the highest, by the thousand.
        """
        added = self._of(ledger_id).add_bits(origin, bits) if bits else 0
        self.entries += added
        return added

    def add_columns(self, ledger_id: int, columns: PieceColumns) -> int:
        """Add many pieces at once; returns how many entries were not contained."""
        added = self._of(ledger_id).add_columns(columns) if columns.firsts else 0
        self.entries += added
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
        before = self.entries
        for ledger_id in [ledger_id for ledger_id in self._ledgers if ledger_id < position.ledger_id]:
            self.entries -= self._ledgers.pop(ledger_id).count
        entries = self._ledgers.get(position.ledger_id)
        if entries is not None:
            self.entries -= entries.remove_up_to(position.entry_id)
            if not entries.count:
                del self._ledgers[position.ledger_id]
        return before - self.entries

    def clear(self) -> None:
        """Forget all entries."""
        self._ledgers.clear()
        self.entries = 0

    def __bool__(self) -> bool:
        return self.entries > 0

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
