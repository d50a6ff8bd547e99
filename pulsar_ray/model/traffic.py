"""Counters, rates, histograms and times of one consumer's or producer's messages.

The names are Pulsar's. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

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


_WEIGHT_OF_FORMER = 0.9


class OutgoingTraffic:
    """Counters start at 0 with this object; times are wall-clock ms, 0 for never."""

    __slots__ = (
        "_meter",
        "acknowledged",
        "bytes",
        "chunks",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages",
        "messages_per_entry",
        "redelivered",
    )

    def __init__(self, monotonic_ms: int) -> None:
        self.messages = 0
        self.bytes = 0
        self.chunks = 0
        self.redelivered = 0
        self.acknowledged = 0
        self.messages_per_entry = 0.0
        self.last_consumed_ms = 0
        self.last_acked_ms = 0
        self.last_flow_ms = 0
        self._meter = RateMeter(monotonic_ms, self._totals())

    def _totals(self) -> tuple[int, int, int, int, int]:
        return self.messages, self.bytes, self.redelivered, self.acknowledged, self.chunks

    def delivered(
        self, messages: int, entries: int, size: int, redelivered: int, now_ms: int, chunks: int = 0
    ) -> None:
        """Messages went out, in so many entries; `redelivered` of them not for the first time.

        `chunks` are those of messages in several.
        """
        self.messages += messages
        self.bytes += size
        self.chunks += chunks
        self.redelivered += redelivered
        self.last_consumed_ms = now_ms
        mean = messages / max(entries, 1)
        former = self.messages_per_entry
        self.messages_per_entry = (
            mean if not former else _WEIGHT_OF_FORMER * former + (1 - _WEIGHT_OF_FORMER) * mean
        )

    def acked(self, messages: int, now_ms: int) -> None:
        """Messages that were pending were acknowledged."""
        self.acknowledged += messages
        self.last_acked_ms = now_ms

    def sample(self, monotonic_ms: int) -> None:
        """Take a sample of the counters; to be called once a second."""
        self._meter.sample(monotonic_ms, self._totals())

    def describe(self) -> dict[str, Any]:
        """Counters, rates per second and times."""
        rate, throughput, redeliver, ack, chunks = self._meter.per_second()
        return {
            "msgRateOut": rate,
            "msgThroughputOut": throughput,
            "msgOutCounter": self.messages,
            "bytesOutCounter": self.bytes,
            "msgRateRedeliver": redeliver,
            "messageAckRate": ack,
            "chunkedMessageRate": chunks,
            "lastAckedTimestamp": self.last_acked_ms,
            "lastConsumedTimestamp": self.last_consumed_ms,
            "lastConsumedFlowTimestamp": self.last_flow_ms,
        }


class IncomingTraffic:
    """Messages stored of one producer, or of all of a partition."""

    __slots__ = ("_meter", "bytes", "chunks", "messages")

    def __init__(self, monotonic_ms: int) -> None:
        self.messages = 0
        self.bytes = 0
        self.chunks = 0
        self._meter = RateMeter(monotonic_ms, (0, 0, 0))

    def stored(self, messages: int, size: int, chunks: int = 0) -> None:
        """Messages became durable, or so many chunks of messages in several."""
        self.messages += messages
        self.bytes += size
        self.chunks += chunks

    def sample(self, monotonic_ms: int) -> None:
        """Take a sample of the counters; to be called once a second."""
        self._meter.sample(monotonic_ms, (self.messages, self.bytes, self.chunks))

    def describe(self) -> dict[str, float]:
        """Rates per second, and the mean size of a message meanwhile, in stored bytes."""
        rate, throughput, chunks = self._meter.per_second()
        return {
            "msgRateIn": rate,
            "msgThroughputIn": throughput,
            "averageMsgSize": throughput / rate if rate else 0.0,
            "chunkedMessageRate": chunks,
            "msgChunkPublished": self.chunks > 0,
        }


class Drops:
    """The counter starts at 0 with this object."""

    __slots__ = ("_meter", "messages")

    def __init__(self, monotonic_ms: int) -> None:
        self.messages = 0
        self._meter = RateMeter(monotonic_ms, (0,))

    def record(self, messages: int) -> None:
        """So many more were dropped."""
        self.messages += messages

    def sample(self, monotonic_ms: int) -> None:
        """Take a sample of the counters; to be called once a second."""
        self._meter.sample(monotonic_ms, (self.messages,))

    def describe(self) -> dict[str, Any]:
        """The rate per second over the last ten seconds, and all since the start."""
        return {"msgDropRate": self._meter.per_second()[0], "msgDropCounter": self.messages}
