"""Counts of values in fixed buckets, as Prometheus' histograms have them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class BucketCounts:
    """Values counted by the first bucket whose upper end they do not exceed.

    Counting costs a bisection and two additions, whatever the number of `times`. The counts only grow.
    """

    __slots__ = ("_counts", "_ends", "_sum")

    def __init__(self, ends: Sequence[float]) -> None:
        self._ends = ends
        self._counts = [0] * (len(ends) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value.

        One below 0, as after a clock was set back, counts as 0.
        """
        if value < 0:
            value = 0.0
        self._counts[bisect_left(self._ends, value)] += times
        self._sum += value * times

    def numbers(self) -> list[float]:
        """Return the count of each bucket, and behind them the sum of all values.

        The last bucket is that of all values above the last end.
        """
        return [*self._counts, self._sum]


def add_numbers(total: list[float] | None, numbers: Sequence[float]) -> list[float]:
    """Add up the numbers of two histograms with the same buckets; None: of none yet."""
    if total is None:
        return list(numbers)
    return [one + other for one, other in zip(total, numbers, strict=True)]
