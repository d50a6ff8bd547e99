"""Sets of a block's rows as bits of an int; and sets of entries.

Row 5 is bit 5.

However scattered the rows are, a set costs an eighth of a byte for each row of the block, and `&`, `|`, `& ~`
and `bit_count` work on thousands of rows in a fraction of a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


RowSet: TypeAlias = int
WireRows: TypeAlias = "RowRanges | bytes"
"""A set in packets: ranges, or bits with row 0 lowest in the first byte."""

MAX_ROWS = 8192
"""No block has more rows; a higher number names no row."""
_FEW_RANGES = 4


def span(start: int, end: int) -> RowSet:
    """Rows start..end-1."""
    return (1 << end) - (1 << start)


def of_ranges(ranges: RowRanges) -> RowSet:
    """The rows of ranges, as far as a block can have them."""
    rows = 0
    for start, end in ranges:
        if start < 0 or end > MAX_ROWS:
            start, end = max(start, 0), min(end, MAX_ROWS)
        if start < end:
            rows |= (1 << end) - (1 << start)
    return rows


def of_flags(flags: NDArray[np.bool_]) -> RowSet:
    """The rows whose flag is set."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def of_flag_rows(flags: NDArray[np.bool_]) -> list[RowSet]:
    """`of_flags` of each row of a table, at once."""
    packed = np.packbits(flags, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def first(rows: RowSet) -> int:
    """The lowest row; -1 if there is none."""
    return (rows & -rows).bit_length() - 1


def is_range(rows: RowSet) -> bool:
    """Whether the rows are neighbours."""
    return not (rows + (rows & -rows)) & rows


def ranges_of(rows: RowSet) -> RowRanges:
    """The rows as ranges."""
    if is_range(rows):
        return ((first(rows), rows.bit_length()),) if rows else ()
    # A bit that differs from the one below it begins or ends a range.
    edges = _flags(rows ^ (rows << 1)).nonzero()[0].tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def numbers_of(rows: RowSet) -> NDArray[np.int64]:
    """The rows in ascending order."""
    if is_range(rows):
        return np.arange(max(first(rows), 0), rows.bit_length(), dtype=np.int64)
    return _flags(rows).nonzero()[0]


def lowest(rows: RowSet, limit: int) -> RowSet:
    """The first `limit` rows."""
    if rows.bit_count() <= limit:
        return rows
    if limit <= 0:
        return 0
    if is_range(rows):
        start = first(rows)
        return span(start, start + limit)
    return rows & ((1 << int(numbers_of(rows)[limit])) - 1)


def to_wire(rows: RowSet) -> WireRows:
    """Write rows as a packet names them, in the shorter of two ways."""
    lowest_bit = rows & -rows
    if not (rows + lowest_bit) & rows:
        return ((lowest_bit.bit_length() - 1, rows.bit_length()),) if rows else ()
    bits = rows.to_bytes((rows.bit_length() + 7) // 8, "little")
    if len(bits) > 4 * _FEW_RANGES and (rows ^ (rows << 1)).bit_count() <= 2 * _FEW_RANGES:
        return ranges_of(rows)
    return bits


def from_wire(rows: WireRows) -> RowSet:
    """Decode a set that `to_wire` encoded."""
    return int.from_bytes(rows, "little") if isinstance(rows, bytes) else of_ranges(rows)


def _flags(rows: RowSet) -> NDArray[np.bool_]:
    data = rows.to_bytes((rows.bit_length() + 7) // 8, "little")
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").view(np.bool_)


EntryRange: TypeAlias = tuple[int, int, int]
"""(ledger id, first entry id, last entry id), inclusive."""
EntryBits: TypeAlias = tuple[int, int, bytes]
"""(ledger id, entry id of the first byte's lowest bit, at most MAX_ENTRIES bits)."""

MAX_ENTRIES = MAX_ROWS
_FEW_ENTRY_RANGES = 4
_FEW_PARTS = 24
_SPARSE = 64
_WINDOW_BYTES = MAX_ENTRIES // 8
_Int64s: TypeAlias = "NDArray[np.int64]"


class EntrySet(NamedTuple):
    """No entry is named twice; both parts are in order."""

    ranges: list[EntryRange]
    bits: Sequence[EntryBits]


def entry_set(flat: Sequence[int], ledger_id: int = -1, singles: Sequence[int] = ()) -> EntrySet:
    """Make a set of ranges in any order, which may overlap.

    A range is a ledger id, a first and a last entry id.

    And `singles`, entry ids of one ledger, in any order too.
    """
    if len(flat) // 3 + len(singles) <= _FEW_PARTS:
        parts = [(flat[at], flat[at + 1], flat[at + 2]) for at in range(0, len(flat), 3)]
        parts += [(ledger_id, entry_id, entry_id) for entry_id in singles]
        return EntrySet(_merged(parts), ())
    entries = np.array(singles, np.int64)
    if not flat and (dense := _dense_bits(ledger_id, entries)) is not None:
        return EntrySet([], dense)
    table = np.array(flat, np.int64).reshape(-1, 3)
    if singles:
        more = np.repeat(entries, 3).reshape(-1, 3)
        more[:, 0] = ledger_id
        table = np.concatenate((table, more))
    ranges: list[EntryRange] = []
    bits: list[EntryBits] = []
    for one_id in np.unique(table[:, 0]).tolist():
        of_ledger = table[table[:, 0] == one_id]
        _add(ranges, bits, one_id, *merged_runs(of_ledger[:, 1:]))
    return EntrySet(ranges, tuple(bits))


def _merged(parts: list[EntryRange]) -> list[EntryRange]:
    """Merge a few ranges in order, those that touch into one.

    Without numpy, whose first step would take longer.
    """
    if len(parts) < 2:
        return parts
    parts.sort()
    merged = [parts[0]]
    for part in parts:
        ledger_id, first, last = merged[-1]
        if part[0] == ledger_id and part[1] <= last + 1:
            merged[-1] = (ledger_id, first, max(last, part[2]))
        else:
            merged.append(part)
    return merged


def _dense_bits(ledger_id: int, entries: _Int64s) -> Sequence[EntryBits] | None:
    """Divide unordered entries into windows of bits; None if they lie too far apart."""
    origin = int(entries.min())
    span = int(entries.max()) - origin + 1
    if span > _SPARSE * len(entries):
        return None
    flags = np.zeros(span, np.bool_)
    flags[entries - origin] = True
    data = np.packbits(flags, bitorder="little").tobytes()
    windows = [(at, data[at : at + _WINDOW_BYTES].rstrip(b"\0")) for at in range(0, len(data), _WINDOW_BYTES)]
    return [(ledger_id, origin + 8 * at, window) for at, window in windows if window]


def neighbours(flags: Mapping[tuple[int, int], bytes | bytearray]) -> Iterator[tuple[int, int, bytes]]:
    """Merge flags by ledger id and first entry id, in order, neighbouring ones into one.

    Of at most MAX_ENTRIES each: whoever takes them in has less to do for one than for its parts.
    """
    parts: list[bytes | bytearray] = []
    ledger_id = origin = end = -1
    for (of_ledger, first), more in sorted(flags.items()):
        if of_ledger != ledger_id or first != end or end + len(more) - origin > MAX_ENTRIES:
            if parts:
                yield ledger_id, origin, b"".join(parts)
            parts, ledger_id, origin = [], of_ledger, first
        parts.append(more)
        end = first + len(more)
    if parts:
        yield ledger_id, origin, b"".join(parts)


def flagged(ledger_id: int, origin: int, flags: bytes) -> EntrySet:
    """The entries from `origin` on whose flag byte is 1; at least one is."""
    first, end = flags.find(1), flags.rfind(1) + 1
    if flags.count(1) == end - first:
        return EntrySet([(ledger_id, origin + first, origin + end - 1)], ())
    bits = np.packbits(np.frombuffer(flags, np.uint8), bitorder="little").tobytes()
    return EntrySet([], ((ledger_id, origin, bits.rstrip(b"\0")),))


def joined(entries: EntrySet, bits: Sequence[EntryBits]) -> EntrySet:
    """Merge a set with bits, of which no two name the same entry.

    The merge costs little unless an entry of the bits may be in `entries` as well.
    """
    if not any(_may_share(entries, some) for some in bits):
        return EntrySet(entries.ranges, sorted((*entries.bits, *bits)))
    flat: list[int] = []
    for part in chain(entries.ranges, *map(ranges_in, (*entries.bits, *bits))):
        flat += part
    return entry_set(flat)


def _may_share(entries: EntrySet, bits: EntryBits) -> bool:
    """Whether anything reaches into the window of the bits."""
    ledger_id, origin, data = bits
    end = origin + 8 * len(data)
    behind = bisect_left(entries.ranges, (ledger_id, origin))
    near = entries.ranges[max(behind - 1, 0) : behind + 1]
    if any(of_id == ledger_id and first < end and last >= origin for of_id, first, last in near):
        return True
    return any(of_id == ledger_id and at < end and at + 8 * len(b) > origin for of_id, at, b in entries.bits)


def ranges_in(bits: EntryBits) -> Iterator[EntryRange]:
    """The ranges of entries that bits say."""
    ledger_id, origin, data = bits
    for first, end in ranges_of(int.from_bytes(data, "little")):
        yield ledger_id, origin + first, origin + end - 1


def merged_runs(ranges: _Int64s) -> tuple[_Int64s, _Int64s]:
    """Merge ranges (first, last) of one ledger into disjoint ones, in order.

    The ranges may come in any order. Returns the first and the last entries.
    """
    firsts, lasts = ranges[:, 0], ranges[:, 1]
    if (np.diff(firsts) < 0).any():
        order = np.argsort(firsts, kind="stable")
        firsts, lasts = firsts[order], lasts[order]
    reach = np.maximum.accumulate(lasts)
    starts = np.flatnonzero(firsts[1:] > reach[:-1] + 1) + 1
    return firsts[np.concatenate(([0], starts))], reach[np.concatenate((starts - 1, [len(reach) - 1]))]


def _add(
    ranges: list[EntryRange], bits: list[EntryBits], ledger_id: int, firsts: _Int64s, lasts: _Int64s
) -> None:
    at = 0
    while at < len(firsts):
        origin = int(firsts[at])
        end = max(int(np.searchsorted(lasts, origin + MAX_ENTRIES)), at + 1)
        if end - at <= _FEW_ENTRY_RANGES:
            runs = zip(firsts[at:end].tolist(), lasts[at:end].tolist(), strict=True)
            ranges.extend((ledger_id, first, last) for first, last in runs)
        else:
            steps = np.zeros(int(lasts[end - 1]) - origin + 2, np.int8)
            steps[firsts[at:end] - origin] = 1
            steps[lasts[at:end] + 1 - origin] = -1
            data = np.packbits(np.cumsum(steps[:-1], dtype=np.int8), bitorder="little").tobytes()
            bits.append((ledger_id, origin, data))
        at = end
