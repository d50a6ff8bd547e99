"""Latencies in buckets: cheap to add to, percentiles at any time."""

from __future__ import annotations

from collections.abc import Iterable

_PER_DOUBLING = 32
_BUCKETS = 2048


class Latencies:
    """Durations in nanoseconds, each known to 3 %. One thread adds while others look."""

    __slots__ = ("_buckets",)

    def __init__(self, buckets: list[int] | None = None) -> None:
        self._buckets = buckets or [0] * _BUCKETS

    def add(self, nanoseconds: int, times: int = 1) -> None:
        """A duration that occurred so many times; below 0 counts as 0."""
        self._buckets[_bucket(nanoseconds)] += times

    def copy(self) -> Latencies:
        """A copy of the counts as they are now."""
        return Latencies(self._buckets.copy())

    def since(self, earlier: Latencies) -> Latencies:
        """The durations that were added after `earlier` was copied from these."""
        return Latencies([now - then for now, then in zip(self._buckets, earlier._buckets, strict=True)])

    @staticmethod
    def total(parts: Iterable[Latencies]) -> Latencies:
        """All of them together."""
        buckets = [part._buckets for part in parts]  # noqa: SLF001 - of its own kind
        return Latencies([sum(counts) for counts in zip(*buckets, strict=True)])

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self._buckets)

    def percentile(self, percent: float) -> int:
        """The nanoseconds that so many percent do not exceed; 0 without any."""
        wanted = self.count * percent / 100
        seen = 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                return _upper_bound(bucket)
        return 0

    def summary(self) -> str:
        """The usual percentiles."""
        values = [f"p{percent:g} {self.percentile(percent) / 1e6:.2f}" for percent in (50, 95, 99, 99.9)]
        return " ".join(values) + " ms"


def _bucket(value: int) -> int:
    """Exact below one doubling, then so many buckets for each."""
    if value < _PER_DOUBLING:
        return max(value, 0)
    doublings = min(value.bit_length(), 64) - _PER_DOUBLING.bit_length()
    return min(doublings * _PER_DOUBLING + (value >> doublings), _BUCKETS - 1)


def _upper_bound(bucket: int) -> int:
    if bucket < _PER_DOUBLING:
        return bucket
    doublings, place = divmod(bucket - _PER_DOUBLING, _PER_DOUBLING)
    return ((place + _PER_DOUBLING + 1) << doublings) - 1
