"""Negative acknowledgments of one consumer on one partition, held until their delay is over."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from pulsar_ray.client.acks.ack_timeouts import backoff_delay_ms
from pulsar_ray.client.options.policies import RedeliveryBackoff
from pulsar_ray.model.row_ranges import RowRanges, union

TICK_MS = 100

Nack = tuple[int, int, RowRanges, int]
"""(ledger id, entry id, failed rows, redelivery count of the delivery that failed).

The rows are empty for an unbatched message.
"""


def joined_by_block(nacks: list[Nack], block_of: Callable[[int, int], range | None]) -> list[Nack]:
    """Make one item of the entries of a block that share a count.

    `nacks` are in position order; `block_of` gives the entries of the block that an entry is stored in, where
    it has several. Rows of an item are counted from its block's first entry.
    """
    joined: list[Nack] = []
    block: range | None = None
    ledger = -1
    runs: dict[int, list[tuple[int, int]]] = {}

    def end_block() -> None:
        if block is not None:
            joined.extend((ledger, block.start, tuple(rows), count) for count, rows in runs.items())
            runs.clear()

    for nack in nacks:
        ledger_id, entry_id, rows, count = nack
        if block is None or ledger_id != ledger or entry_id not in block:
            end_block()
            ledger, block = ledger_id, None if rows else block_of(ledger_id, entry_id)
        if block is None:
            joined.append(nack)
            continue
        row = entry_id - block.start
        found = runs.setdefault(count, [])
        if found and found[-1][1] == row:
            found[-1] = (found[-1][0], row + 1)
        else:
            found.append((row, row + 1))
    end_block()
    return joined


class NackTracker:
    """Holds failed messages until they are due.

    None is due early, and at most one tick late if asked for at `next_deadline_ms`. A batch comes back as a
    whole with its first failed row, so rows of it that fail meanwhile join that one; each row is named,
    because failures are counted per message.
    """

    __slots__ = ("_backoff", "_delay_ms", "_heap", "_tick_of", "_waiting", "messages")

    def __init__(self, delay_ms: int, backoff: RedeliveryBackoff | None = None) -> None:
        self._delay_ms = delay_ms
        self._backoff = backoff
        self._heap: list[int] = []
        self._waiting: dict[int, dict[tuple[int, int, int], RowRanges]] = {}
        self._tick_of: dict[tuple[int, int, int], int] = {}
        self.messages = 0
        """The number of those that wait, each row of a batch for one."""

    def __len__(self) -> int:
        return len(self._tick_of)

    @property
    def has_backoff(self) -> bool:
        """Whether `delay_ms` asks the application for each message."""
        return self._backoff is not None

    def delay_ms(self, failures: int) -> int:
        """The delay of a message that has failed so often before.

        Those `failures` are its redelivery count unless it belongs to a batch. Call without the lock: a
        backoff is the application's code.
        """
        return backoff_delay_ms(
            self._backoff, max(failures, 0), "negative_ack_redelivery_backoff", self._delay_ms
        )

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        redelivery_count: int,
        now_ms: int,
        rows: RowRanges = (),
        delay_ms: int | None = None,
    ) -> None:
        """Note that a message failed now, and comes again in `delay_ms`.

        That is the delay without a backoff if it is not given.
        """
        key = (ledger_id, entry_id, redelivery_count)
        tick = self._tick_of.get(key)
        if tick is None:
            tick = -(-(now_ms + (self._delay_ms if delay_ms is None else delay_ms)) // TICK_MS)
            self._tick_of[key] = tick
            group = self._waiting.get(tick)
            if group is None:
                group = self._waiting[tick] = {}
                heapq.heappush(self._heap, tick)
            group[key] = rows
            self.messages += _count(rows)
        elif rows:
            group = self._waiting[tick]
            former = group[key]
            group[key] = union(former, rows)
            self.messages += _count(group[key]) - _count(former)

    def holds(self, ledger_id: int, entry_id: int, redelivery_count: int) -> bool:
        """Whether an entry of this delivery waits, named by its message or by its id."""
        keys = self._tick_of
        return (ledger_id, entry_id, redelivery_count) in keys or (ledger_id, entry_id, -1) in keys

    def take(self, ledger_id: int, entry_id: int, redelivery_count: int) -> RowRanges:
        """Take out the failed messages of a batch that comes again now anyway."""
        rows: RowRanges = ()
        for count in (redelivery_count, -1):
            tick = self._tick_of.pop((ledger_id, entry_id, count), None)
            if tick is not None:
                taken = self._waiting[tick].pop((ledger_id, entry_id, count))
                self.messages -= _count(taken)
                rows = union(rows, taken)
        return rows

    def next_deadline_ms(self) -> int | None:
        """When `due` has to be called next, or None if nothing waits."""
        return self._heap[0] * TICK_MS if self._heap else None

    def due(self, now_ms: float) -> list[Nack]:
        """Take out the messages that are due, in position order; all of them at infinity."""
        found: list[Nack] = []
        while self._heap and self._heap[0] * TICK_MS <= now_ms:
            for key, rows in self._waiting.pop(heapq.heappop(self._heap)).items():
                del self._tick_of[key]
                ledger_id, entry_id, count = key
                self.messages -= _count(rows)
                found.append((ledger_id, entry_id, rows, count))
        found.sort()
        return found

    def clear(self) -> None:
        """Forget everything: all unacknowledged messages come again anyway."""
        self._heap.clear()
        self._waiting.clear()
        self._tick_of.clear()
        self.messages = 0


def _count(rows: RowRanges) -> int:
    return sum(end - start for start, end in rows) if rows else 1
