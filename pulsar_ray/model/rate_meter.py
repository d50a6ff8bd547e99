"""Rates of counters that only grow, from samples taken about once a second. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

WINDOW_SAMPLES = 11
"""A rate is the mean of ten seconds if samples come once a second."""


class RateMeter:
    """Rates of counters from their totals, which are sampled once a second.

    Counting costs nothing here: the owner of the counters keeps the totals.
    """

    __slots__ = ("_samples",)

    def __init__(self, now_ms: int, totals: Sequence[int]) -> None:
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=WINDOW_SAMPLES)
        self._samples.append((now_ms, tuple(totals)))

    def sample(self, now_ms: int, totals: Sequence[int]) -> None:
        """Take a sample of the totals, at most one for each moment.

        A clock that stands still adds nothing.
        """
        if now_ms > self._samples[-1][0]:
            self._samples.append((now_ms, tuple(totals)))

    def per_second(self) -> tuple[float, ...]:
        """The rate of each counter over the samples at hand; 0 until there are two."""
        first_ms, first = self._samples[0]
        last_ms, last = self._samples[-1]
        seconds = (last_ms - first_ms) / 1000
        if not seconds:
            return (0.0,) * len(first)
        return tuple((after - before) / seconds for before, after in zip(first, last, strict=True))
