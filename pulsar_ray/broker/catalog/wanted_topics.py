"""Remembers which partitions were asked for just now.

Clients connect to a partition a moment after they have found it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_ray.broker.catalog.recent_names import RecentNames

WANTED_MS = 30_000
"""The time in which whoever has asked for a partition connects."""


class WantedTopics:
    """Belongs to the controller, which is told of nothing that was before `began_ms`."""

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        self._asked = RecentNames(WANTED_MS)

    def asked(self, partitions: Iterable[str], now_ms: int) -> None:
        """Note that somebody has asked for these partitions."""
        for partition in partitions:
            self._asked.note(partition, now_ms)

    def is_wanted(self, partition: str, now_ms: int) -> bool:
        """Whether somebody who is not connected yet may be about to use it."""
        asked_ms = self._asked.noted_ms(partition)
        return now_ms - (self._began_ms if asked_ms is None else asked_ms) <= WANTED_MS
