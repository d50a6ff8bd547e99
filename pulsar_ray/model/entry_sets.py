"""A set of entries, as ranges for runs and as bits for scattered ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pulsar_ray.model import row_sets
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

EntryRange: TypeAlias = tuple[int, int, int]
"""(ledger id, first entry id, last entry id), inclusive."""
EntryBits: TypeAlias = tuple[int, int, bytes]
"""(ledger id, entry id of the first byte's lowest bit, at most MAX_ENTRIES bits)."""

MAX_ENTRIES = row_sets.MAX_ROWS
_FEW_RANGES = 4
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
    for first, end in row_sets.ranges_of(int.from_bytes(data, "little")):
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
        if end - at <= _FEW_RANGES:
            runs = zip(firsts[at:end].tolist(), lasts[at:end].tolist(), strict=True)
            ranges.extend((ledger_id, first, last) for first, last in runs)
        else:
            steps = np.zeros(int(lasts[end - 1]) - origin + 2, np.int8)
            steps[firsts[at:end] - origin] = 1
            steps[lasts[at:end] + 1 - origin] = -1
            data = np.packbits(np.cumsum(steps[:-1], dtype=np.int8), bitorder="little").tobytes()
            bits.append((ledger_id, origin, data))
        at = end
