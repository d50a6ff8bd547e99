"""Rows that were handed to the application and not acknowledged, until their time is over."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable
from typing import NamedTuple

from pulsar_ray.client.options.policies import RedeliveryBackoff
from pulsar_ray.client.received.message import Rows, set_of
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet

logger = logging.getLogger(__name__)


def backoff_delay_ms(
    backoff: RedeliveryBackoff | None, failures: int, option: str, without_ms: int = 0
) -> int:
    """Return the delay after so many failures, and `without_ms` if the backoff fails.

    That is logged, by the name of the backoff's `option`: no message may be forgotten for it.
    """
    delay_ms = without_ms
    if backoff is not None:
        try:
            delay_ms = int(backoff.next(failures))
        except Exception:
            logger.exception("%s failed: the delay goes without it", option)
    return max(delay_ms, 0)


class EntryRun(NamedTuple):
    """Neighbouring entries of one message each, that share a redelivery count."""

    ledger_id: int
    first: int
    last: int
    redelivery_count: int


class TimedRows(NamedTuple):
    """Rows of a block of several messages."""

    ledger_id: int
    first_entry_id: int
    redelivery_count: int
    rows: RowSet
    messages: int
    is_batch: bool


class _Handed:
    """Rows that are due at the same time.

    A range for neighbours, a set for a block.
    """

    __slots__ = ("blocks", "runs")

    def __init__(self) -> None:
        self.runs: list[EntryRun] = []
        self.blocks: dict[tuple[int, int, int], TimedRows] = {}

    def add_entry(self, ledger_id: int, entry_id: int, count: int) -> None:
        runs = self.runs
        if runs:
            last = runs[-1]
            if last[2] + 1 == entry_id and last[0] == ledger_id and last[3] == count:
                runs[-1] = EntryRun(ledger_id, last[1], entry_id, count)
                return
        runs.append(EntryRun(ledger_id, entry_id, entry_id, count))

    def add_rows(self, timed: TimedRows) -> None:
        key = timed[:3]
        known = self.blocks.get(key)
        self.blocks[key] = timed if known is None else timed._replace(rows=timed.rows | known.rows)

    def remove_entry(self, ledger_id: int, entry_id: int, count: int) -> None:
        for index in range(len(self.runs) - 1, -1, -1):
            run = self.runs[index]
            is_inside = run.ledger_id == ledger_id and run.first <= entry_id <= run.last
            if is_inside and run.redelivery_count == count:
                parts = (run._replace(last=entry_id - 1), run._replace(first=entry_id + 1))
                self.runs[index : index + 1] = [part for part in parts if part.first <= part.last]
                return

    def remove_rows(self, block: ReceivedBlock, rows: RowSet) -> None:
        key = (block.ledger_id, block.first_entry_id, block.redelivery_count)
        known = self.blocks.get(key)
        if known is not None:
            left = known.rows & ~rows
            if left:
                self.blocks[key] = known._replace(rows=left)
            else:
                del self.blocks[key]

    def __bool__(self) -> bool:
        return bool(self.runs or self.blocks)


class AckTimeouts:
    """Counts from hand-over to the application; the consumer's lock guards it.

    Everything that was handed over since the last `tick` is due the timeout after it, so that nothing comes
    early, nor more than a tick late. Acknowledgments take nothing out: whoever is given what is due looks for
    them.
    """

    def __init__(self, timeout_ms: int, backoff: RedeliveryBackoff | None = None) -> None:
        self._timeout_ms = timeout_ms
        self._backoff = backoff
        # By how often it failed before, for which the backoff has a delay.
        self._fresh: dict[int, _Handed] = {}
        self._waiting: dict[int, _Handed] = {}
        self._heap: list[int] = []

    def add(self, block: ReceivedBlock, rows: Rows) -> None:
        """Rows were handed over."""
        if block.message_count == 1 and not block.is_batch:
            handed = self._due_after(block.redelivery_count)
            handed.add_entry(block.ledger_id, block.first_entry_id, block.redelivery_count)
            return
        chosen = set_of(rows)
        if self._backoff is not None and block.is_batch:
            for first, end, failures in block.row_failures:
                if failed := chosen & row_sets.span(first, end):
                    self._due_after(failures).add_rows(_timed(block, failed))
                    chosen ^= failed
            if chosen:
                self._due_after(block.failures_of(row_sets.first(chosen))).add_rows(_timed(block, chosen))
        elif chosen:
            self.add_rows(_timed(block, chosen))

    def add_rows(self, rows: TimedRows) -> None:
        """Rows were handed over that share a redelivery count."""
        self._due_after(rows.redelivery_count).add_rows(rows)

    def _due_after(self, failures: int) -> _Handed:
        return self._fresh.setdefault(failures if self._backoff is not None else 0, _Handed())

    def take_back(self, block: ReceivedBlock, rows: Rows) -> None:
        """Rows did not get to the application after all."""
        for handed in (*self._fresh.values(), *self._waiting.values()):
            if block.message_count == 1 and not block.is_batch:
                handed.remove_entry(block.ledger_id, block.first_entry_id, block.redelivery_count)
            else:
                handed.remove_rows(block, set_of(rows))

    @property
    def fresh_failures(self) -> list[int]:
        """How often what was handed over since the last tick had failed before."""
        return list(self._fresh)

    def delays_ms(self, failures: Iterable[int]) -> dict[int, int]:
        """The delay for each of these numbers of failures, for `tick`.

        Call without the lock: a backoff is the application's code.
        """
        return {
            number: backoff_delay_ms(self._backoff, number, "ack_timeout_redelivery_backoff")
            for number in failures
        }

    def tick(self, now_ms: int, delays_ms: dict[int, int]) -> None:
        """Let the time of what was handed over begin, where it has a delay here.

        The rest waits for the next tick.
        """
        for failures, delay_ms in delays_ms.items():
            handed = self._fresh.pop(failures, None)
            due_ms = now_ms + self._timeout_ms + delay_ms
            if not handed:
                continue
            if due_ms not in self._waiting:
                heapq.heappush(self._heap, due_ms)
                self._waiting[due_ms] = handed
                continue
            known = self._waiting[due_ms]
            known.runs += handed.runs
            for key, rows in handed.blocks.items():
                before = known.blocks.get(key)
                known.blocks[key] = rows if before is None else rows._replace(rows=rows.rows | before.rows)

    def next_deadline_ms(self) -> int | None:
        """When `due` has to be called next, or None if nothing waits."""
        return self._heap[0] if self._heap else None

    def due(self, now_ms: int) -> list[EntryRun | TimedRows]:
        """Take out what is due."""
        found: list[EntryRun | TimedRows] = []
        while self._heap and self._heap[0] <= now_ms:
            handed = self._waiting.pop(heapq.heappop(self._heap))
            found += handed.runs
            found += handed.blocks.values()
        return found

    def clear(self) -> None:
        """Forget everything: all unacknowledged messages come again anyway."""
        self._fresh.clear()
        self._waiting.clear()
        self._heap.clear()


def _timed(block: ReceivedBlock, rows: RowSet) -> TimedRows:
    place = block.ledger_id, block.first_entry_id
    return TimedRows(*place, block.redelivery_count, rows, block.message_count, block.is_batch)
