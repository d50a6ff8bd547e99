"""Sets of rows of one block: sorted, disjoint, half-open ranges that do not touch.

Every function takes and returns that form; only the second argument of `union` may be any ranges.
"""

from __future__ import annotations

from collections.abc import Iterable

RowRanges = tuple[tuple[int, int], ...]

RowFailures = tuple[tuple[int, int, int], ...]
"""(first row, end row, failures) of a batch: sorted, disjoint, zeros left out."""

NO_ROWS: RowRanges = ()


def all_rows(row_count: int) -> RowRanges:
    """Rows 0 to row_count - 1."""
    return ((0, row_count),) if row_count > 0 else ()


def count(rows: RowRanges) -> int:
    """How many rows these are."""
    total = 0
    for start, end in rows:
        total += end - start
    return total


def contains(rows: RowRanges, row: int) -> bool:
    """Whether `row` is one of these."""
    return any(start <= row < end for start, end in rows)


def union(rows: RowRanges, other: Iterable[tuple[int, int]]) -> RowRanges:
    """Rows in either; `other` may be unsorted, overlapping or hold empty ranges."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((*rows, *other)):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return tuple(merged)


def intersect(rows: RowRanges, other: RowRanges) -> RowRanges:
    """Rows in both."""
    common: list[tuple[int, int]] = []
    i = j = 0
    while i < len(rows) and j < len(other):
        start = max(rows[i][0], other[j][0])
        end = min(rows[i][1], other[j][1])
        if start < end:
            common.append((start, end))
        if rows[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def subtract(rows: RowRanges, other: RowRanges) -> RowRanges:
    """Rows that are not in `other`."""
    left: list[tuple[int, int]] = []
    j = 0
    for start, end in rows:
        at = start
        while j < len(other) and other[j][1] <= at:
            j += 1
        k = j
        while k < len(other) and other[k][0] < end:
            if other[k][0] > at:
                left.append((at, other[k][0]))
            at = max(at, other[k][1])
            k += 1
        if at < end:
            left.append((at, end))
    return tuple(left)
