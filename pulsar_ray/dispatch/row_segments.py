"""Rows of a block that wait to be dispatched, each with the redelivery count it will carry.

A list of segments (rows, count): one for each count, none of them empty, disjoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet

Segment: TypeAlias = tuple[RowSet, int]


def insert(segments: list[Segment], rows: RowSet, count: int) -> None:
    """Add rows that are not contained yet."""
    if not rows:
        return
    for i, (known, of_count) in enumerate(segments):
        if of_count == count:
            segments[i] = (known | rows, count)
            return
    segments.append((rows, count))


def remove(segments: list[Segment], rows: RowSet) -> int:
    """Take rows out, as far as they are contained; returns how many were."""
    before = size(segments)
    segments[:] = [(left, count) for known, count in segments if (left := known & ~rows)]
    return before - size(segments)


def size(segments: list[Segment]) -> int:
    """How many rows they are."""
    if len(segments) == 1:
        return segments[0][0].bit_count()
    return sum(rows.bit_count() for rows, _ in segments)


def take(segments: list[Segment], limit: int) -> tuple[RowSet, int]:
    """Take the first rows that share one count, at most `limit` of them; returns them and the count."""
    i, (rows, count), taken = 0, segments[0], 0
    if len(segments) > 1:
        i, (rows, count) = min(enumerate(segments), key=_first_bit)
        others = rows_of(segments) ^ rows
        taken = rows & ((others & -others) - 1)
    taken = taken or rows
    if taken.bit_count() > limit:
        taken = row_sets.lowest(taken, limit)
    if taken == rows:
        del segments[i]
    else:
        segments[i] = (rows ^ taken, count)
    return taken, count


def in_order(segments: list[Segment]) -> Iterator[Segment]:
    """Take everything: rows that share a count and have none of another between them, in order."""
    while segments:
        yield take(segments, row_sets.MAX_ROWS)


def count_of(segments: list[Segment], row: int) -> int:
    """The count of a row that is contained."""
    return next(count for rows, count in segments if rows >> row & 1)


def rows_of(segments: list[Segment]) -> RowSet:
    """The rows in all segments."""
    found = 0
    for rows, _ in segments:
        found |= rows
    return found


def _first_bit(segment: tuple[int, Segment]) -> int:
    rows = segment[1][0]
    return rows & -rows
