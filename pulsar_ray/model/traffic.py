"""Counters, rates and times of one consumer's or producer's messages.

The names are Pulsar's. Pure.
"""

from __future__ import annotations

from typing import Any

from pulsar_ray.model.rate_meter import RateMeter

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
