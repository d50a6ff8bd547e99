"""Rows of a block that wait, each with the redelivery count it will carry.

A list of `CountedRows` (rows, count): one for each count, none of them empty, disjoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet

CountedRows: TypeAlias = tuple[RowSet, int]


def insert(parts: list[CountedRows], rows: RowSet, count: int) -> None:
    """Add rows that are not contained yet."""
    if not rows:
        return
    for i, (known, of_count) in enumerate(parts):
        if of_count == count:
            parts[i] = (known | rows, count)
            return
    parts.append((rows, count))


def remove(parts: list[CountedRows], rows: RowSet) -> int:
    """Take rows out, as far as they are contained; returns how many were."""
    before = size(parts)
    parts[:] = [(left, count) for known, count in parts if (left := known & ~rows)]
    return before - size(parts)


def size(parts: list[CountedRows]) -> int:
    """How many rows they are."""
    if len(parts) == 1:
        return parts[0][0].bit_count()
    return sum(rows.bit_count() for rows, _ in parts)


def take(parts: list[CountedRows], limit: int) -> tuple[RowSet, int]:
    """Take the first rows that share one count, at most `limit`; returns both."""
    i, (rows, count), taken = 0, parts[0], 0
    if len(parts) > 1:
        i, (rows, count) = min(enumerate(parts), key=_first_bit)
        others = rows_of(parts) ^ rows
        taken = rows & ((others & -others) - 1)
    taken = taken or rows
    if taken.bit_count() > limit:
        taken = row_sets.lowest(taken, limit)
    if taken == rows:
        del parts[i]
    else:
        parts[i] = (rows ^ taken, count)
    return taken, count


def in_order(parts: list[CountedRows]) -> Iterator[CountedRows]:
    """Take everything, in order: runs of rows that share a count."""
    while parts:
        yield take(parts, row_sets.MAX_ROWS)


def count_of(parts: list[CountedRows], row: int) -> int:
    """The count of a row that is contained."""
    return next(count for rows, count in parts if rows >> row & 1)


def rows_of(parts: list[CountedRows]) -> RowSet:
    """All rows together."""
    found = 0
    for rows, _ in parts:
        found |= rows
    return found


def _first_bit(segment: tuple[int, CountedRows]) -> int:
    rows = segment[1][0]
    return rows & -rows
