"""Count messages of a non-persistent topic that were dropped.

The names are Pulsar's. Pure.
"""

from __future__ import annotations

from typing import Any

from pulsar_ray.model.rate_meter import RateMeter


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
