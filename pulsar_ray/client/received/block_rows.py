"""Rows of a received block, as receiver queues and batches hand them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import RowSet

T = TypeVar("T")

Rows: TypeAlias = "range | list[int]"
"""Row numbers in ascending order; neighbouring ones are a range."""
PlacedRows: TypeAlias = tuple[int, int, RowSet]
"""(ledger id, first entry id of the block, rows)."""


class BlockRows(NamedTuple):
    """Rows of one block."""

    block: ReceivedBlock
    rows: Rows


def rows_in(rows: RowSet) -> Rows:
    """The rows of a set."""
    if not rows & (rows + 1):  # from the first row on, as nearly always
        return range(rows.bit_length())
    if row_sets.is_range(rows):
        return range(row_sets.first(rows), rows.bit_length())
    numbers: list[int] = row_sets.numbers_of(rows).tolist()
    return numbers


def set_of(rows: Rows) -> RowSet:
    """The rows as a set."""
    return row_sets.of_ranges(ranges_of(rows))


def ranges_of(rows: Rows) -> RowRanges:
    """The ranges of rows."""
    if not rows:
        return ()
    first, end = rows[0], rows[-1] + 1
    if end - first == len(rows):
        return ((first, end),)
    numbers = row_numbers(rows)
    cuts = np.flatnonzero(np.diff(numbers) != 1)
    firsts = [first, *numbers[cuts + 1].tolist()]
    ends = [*(numbers[cuts] + 1).tolist(), end]
    return tuple(zip(firsts, ends, strict=True))


def row_numbers(rows: Rows) -> NDArray[np.int64]:
    """The rows as an array."""
    if isinstance(rows, range):
        return np.arange(rows.start, rows.stop, dtype=np.int64)
    return np.array(rows, dtype=np.int64)


def items_of(column: Sequence[T], rows: Rows) -> list[T]:
    """The items of a column in these rows."""
    if isinstance(rows, range):
        return list(column[rows.start : rows.stop])
    return [column[row] for row in rows]
