"""Remembers which partitions were asked for just now.

Clients connect to a partition a moment after they have found it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

WANTED_MS = 30_000
"""The time in which whoever has asked for a partition connects."""


class WantedTopics:
    """Belongs to the controller, which is told of nothing that was before `began_ms`."""

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        self._asked_ms: OrderedDict[str, int] = OrderedDict()

    def asked(self, partitions: Iterable[str], now_ms: int) -> None:
        """Note that somebody has asked for these partitions."""
        asked = self._asked_ms
        for partition in partitions:
            asked[partition] = now_ms
            asked.move_to_end(partition)
        while asked and now_ms - next(iter(asked.values())) > WANTED_MS:
            asked.popitem(last=False)

    def is_wanted(self, partition: str, now_ms: int) -> bool:
        """Whether somebody who is not connected yet may be about to use it."""
        return now_ms - self._asked_ms.get(partition, self._began_ms) <= WANTED_MS
