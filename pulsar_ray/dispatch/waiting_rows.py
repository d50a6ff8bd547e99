"""The waiting rows of a block as arrays, for blocks whose rows have different owners."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pulsar_ray.dispatch.row_segments import Segment
from pulsar_ray.model.row_ranges import RowRanges

Rows: TypeAlias = "NDArray[np.int64]"
"""Row numbers in ascending order."""


class WaitingRows(NamedTuple):
    """Rows with their redelivery counts: one for all, or one for each."""

    rows: Rows
    counts: int | NDArray[np.int64]

    def chosen(self, mask: NDArray[np.bool_]) -> WaitingRows:
        """Those of the rows where the mask is set."""
        counts = self.counts if isinstance(self.counts, int) else self.counts[mask]
        return WaitingRows(self.rows[mask], counts)

    def by_count(self) -> list[tuple[RowRanges, int]]:
        """In order: ranges of rows that share a count, and the count."""
        if isinstance(self.counts, int):
            return [(ranges_of(self.rows), self.counts)] if len(self.rows) else []
        cuts = np.flatnonzero(np.diff(self.counts)) + 1
        parts = zip(np.split(self.rows, cuts), np.split(self.counts, cuts), strict=True)
        return [(ranges_of(rows), int(counts[0])) for rows, counts in parts if len(rows)]

    def segments(self) -> list[Segment]:
        """The rows as a block keeps them."""
        return [(start, end, count) for ranges, count in self.by_count() for start, end in ranges]


def waiting_rows(segments: list[Segment]) -> WaitingRows:
    """The rows of sorted segments."""
    if len(segments) == 1:
        start, end, count = segments[0]
        return WaitingRows(np.arange(start, end, dtype=np.int64), count)
    table = np.array(segments, dtype=np.int64)
    lengths = table[:, 1] - table[:, 0]
    rows = rows_between(table[:, 0], lengths)
    if (table[:, 2] == table[0, 2]).all():
        return WaitingRows(rows, int(table[0, 2]))
    return WaitingRows(rows, np.repeat(table[:, 2], lengths))


def rows_of(ranges: RowRanges) -> Rows:
    """The rows of ranges."""
    if len(ranges) == 1:
        first, end = ranges[0]
        return np.arange(first, end, dtype=np.int64)
    table = np.array(ranges, dtype=np.int64).reshape(-1, 2)
    return rows_between(table[:, 0], table[:, 1] - table[:, 0])


def rows_between(starts: Rows, lengths: Rows) -> Rows:
    """The rows of ranges of these starts and lengths."""
    numbers: Rows = np.arange(int(lengths.sum()), dtype=np.int64)
    numbers += np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    return numbers


def ranges_of(rows: Rows) -> RowRanges:
    """Ascending rows as ranges."""
    cuts = np.flatnonzero(np.diff(rows) != 1)
    starts = rows[np.concatenate(([0], cuts + 1))].tolist()
    ends = (rows[np.concatenate((cuts, [-1]))] + 1).tolist()
    return tuple(zip(starts, ends, strict=True))
