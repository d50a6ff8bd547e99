"""Rows of a block that wait to be dispatched, each with the redelivery count it will carry.

A list of segments (start, end, count): sorted, disjoint; neighbours that touch and have one count are
merged. Adding or removing one range costs a bisection, whatever the number of segments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TypeAlias

from pulsar_ray.model.row_ranges import RowRanges

Segment: TypeAlias = tuple[int, int, int]


def insert(segments: list[Segment], rows: RowRanges, count: int) -> None:
    """Add rows that are not contained yet."""
    for start, end in rows:
        i = bisect_left(segments, (start, end, count))
        j = i
        if i and segments[i - 1][1] == start and segments[i - 1][2] == count:
            i -= 1
            start = segments[i][0]
        if j < len(segments) and segments[j][0] == end and segments[j][2] == count:
            end = segments[j][1]
            j += 1
        segments[i:j] = ((start, end, count),)


def remove(segments: list[Segment], rows: RowRanges) -> int:
    """Take rows out, as far as they are contained; returns how many were."""
    removed = 0
    for start, end in rows:
        i = bisect_right(segments, start, key=_range_end)
        j = i
        left: list[Segment] = []
        while j < len(segments) and segments[j][0] < end:
            a, b, count = segments[j]
            if a < start:
                left.append((a, start, count))
            if b > end:
                left.append((end, b, count))
            removed += min(b, end) - max(a, start)
            j += 1
        if i < j:
            segments[i:j] = left
    return removed


def size(segments: list[Segment]) -> int:
    """How many rows they are."""
    if len(segments) == 1:
        return segments[0][1] - segments[0][0]
    return sum(end - start for start, end, _ in segments)


def take(segments: list[Segment], limit: int) -> tuple[RowRanges, int]:
    """Take the first rows that share one count, at most `limit` of them; returns them and the count."""
    start, end, count = segments[0]
    if len(segments) == 1 and end - start <= limit:
        segments.clear()
        return ((start, end),), count
    taken: list[tuple[int, int]] = []
    i = 0
    while i < len(segments) and limit > 0 and segments[i][2] == count:
        start, end, _ = segments[i]
        if end - start > limit:
            taken.append((start, start + limit))
            segments[i] = (start + limit, end, count)
            break
        taken.append((start, end))
        limit -= end - start
        i += 1
    del segments[:i]
    return tuple(taken), count


def rows_of(segments: list[Segment]) -> RowRanges:
    """The rows in all segments, as row ranges."""
    rows: list[tuple[int, int]] = []
    for start, end, _ in segments:
        if rows and rows[-1][1] == start:
            rows[-1] = (rows[-1][0], end)
        else:
            rows.append((start, end))
    return tuple(rows)


def without(rows: RowRanges, start: int, end: int) -> tuple[RowRanges, int]:
    """Take rows start..end-1 out of row ranges, by bisection; returns the rest and how many went."""
    i = bisect_right(rows, start, key=_range_end)
    j = bisect_left(rows, end, i, key=_range_start)
    if i == j:
        return rows, 0
    first, last = rows[i][0], rows[j - 1][1]
    gone = sum(b - a for a, b in rows[i:j])
    left: list[tuple[int, int]] = []
    if first < start:
        left.append((first, start))
        gone -= start - first
    if last > end:
        left.append((end, last))
        gone -= last - end
    return (*rows[:i], *left, *rows[j:]), gone


def _range_start(row_range: tuple[int, ...]) -> int:
    return row_range[0]


def _range_end(row_range: tuple[int, ...]) -> int:
    return row_range[1]
