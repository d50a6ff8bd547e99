"""Negative acknowledgments of one consumer on one partition, held until their delay is over."""

from __future__ import annotations

import heapq

from pulsar_ray.client.options.policies import RedeliveryBackoff
from pulsar_ray.model.row_ranges import RowRanges, union

TICK_MS = 100

Nack = tuple[int, int, RowRanges, int]
"""(ledger id, entry id, failed rows, redelivery count of the delivery that failed).

The rows are empty for an unbatched message.
"""


class NackTracker:
    """Holds failed messages until they are due.

    None is due early, and at most one tick late if asked for at `next_deadline_ms`. A batch comes back as a
    whole with its first failed row, so rows of it that fail meanwhile join that one; each row is named,
    because failures are counted per message.
    """

    __slots__ = ("_backoff", "_delay_ms", "_heap", "_tick_of", "_waiting")

    def __init__(self, delay_ms: int, backoff: RedeliveryBackoff | None = None) -> None:
        self._delay_ms = delay_ms
        self._backoff = backoff
        self._heap: list[int] = []
        self._waiting: dict[int, dict[tuple[int, int, int], RowRanges]] = {}
        self._tick_of: dict[tuple[int, int, int], int] = {}

    def __len__(self) -> int:
        return len(self._tick_of)

    def add(
        self, ledger_id: int, entry_id: int, redelivery_count: int, now_ms: int, rows: RowRanges = ()
    ) -> None:
        """Note that a message failed now.

        With a backoff the delay is the one for its redelivery count. Raises what the backoff raises.
        """
        key = (ledger_id, entry_id, redelivery_count)
        tick = self._tick_of.get(key)
        if tick is None:
            backoff = self._backoff
            delay_ms = self._delay_ms if backoff is None else backoff.next(redelivery_count)
            tick = -(-(now_ms + max(delay_ms, 0)) // TICK_MS)
            self._tick_of[key] = tick
            group = self._waiting.get(tick)
            if group is None:
                group = self._waiting[tick] = {}
                heapq.heappush(self._heap, tick)
            group[key] = rows
        elif rows:
            group = self._waiting[tick]
            group[key] = union(group[key], rows)

    def next_deadline_ms(self) -> int | None:
        """When `due` has to be called next, or None if nothing waits."""
        return self._heap[0] * TICK_MS if self._heap else None

    def due(self, now_ms: int) -> list[Nack]:
        """Take out the messages that are due, in position order."""
        found: list[Nack] = []
        while self._heap and self._heap[0] * TICK_MS <= now_ms:
            for key, rows in self._waiting.pop(heapq.heappop(self._heap)).items():
                del self._tick_of[key]
                ledger_id, entry_id, count = key
                found.append((ledger_id, entry_id, rows, count))
        found.sort()
        return found

    def clear(self) -> None:
        """Forget everything: all unacknowledged messages come again anyway."""
        self._heap.clear()
        self._waiting.clear()
        self._tick_of.clear()
