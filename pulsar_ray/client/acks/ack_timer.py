"""Has messages delivered again whose ack timeout is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pulsar_ray.client.acks.ack_sender import AckSender
from pulsar_ray.client.acks.ack_timeouts import AckTimeouts, EntryRun, TimedRows
from pulsar_ray.client.acks.deadline_timer import DeadlineTimer
from pulsar_ray.client.acks.nack_tracker import Nack
from pulsar_ray.client.acks.partition_acks import PartitionAcks
from pulsar_ray.client.received.message import Rows
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.clock import SystemClock
from pulsar_ray.model import row_sets

_CLOCK = SystemClock()


class AckTimer:
    """The ack timeout of a consumer on one partition; there only where one is set.

    Rows that a program takes out of a queue one by one cost nothing each: `look` is called once a tick, and
    adds to `timeouts` those that were taken since. `lock` is the consumer's.
    """

    def __init__(
        self,
        timeouts: AckTimeouts,
        tick_ms: int,
        state: PartitionAcks,
        sender: AckSender,
        look: Callable[[], bool],
        lock: threading.Lock,
    ) -> None:
        self._timeouts = timeouts
        self._tick_ms = tick_ms
        self._state = state
        self._sender = sender
        self._look = look
        """Returns whether rows are left that are being handed out."""
        self._lock = lock
        self._timer = DeadlineTimer(state.requests, lock, self._run)

    def forked(self, lock: threading.Lock) -> None:
        """Time nothing more, in a forked child."""
        self._lock = lock
        self._timeouts.clear()

    def handed_over(self, block: ReceivedBlock, rows: Rows) -> None:
        """Rows were handed to the application. Called without the lock."""
        with self._lock:
            self._timeouts.add(block, rows)
            self.arm()

    def handed_over_rows(self, rows: TimedRows) -> None:
        """Tell the application of a block that cannot be decoded. Called without the lock."""
        with self._lock:
            self._timeouts.add_rows(rows)
            self.arm()

    def note(self, block: ReceivedBlock, rows: Rows) -> None:
        """Rows were handed to the application lately.

        Called with the lock held, while the timer is set.
        """
        self._timeouts.add(block, rows)

    def take_back(self, block: ReceivedBlock, rows: Rows) -> None:
        """Rows did not get to the application after all. Called with the lock held."""
        self._timeouts.take_back(block, rows)

    def arm(self) -> None:
        """Look at the next tick what was handed over. Called with the lock held."""
        if not self._timer.is_set:
            now_ms = _CLOCK.monotonic_ms()
            self._timer.set(now_ms + self._tick_ms, now_ms)

    def _run(self) -> None:
        with self._lock:
            self._look()
            failures = self._timeouts.fresh_failures
        delays_ms = self._timeouts.delays_ms(failures)
        with self._lock:
            now_ms = _CLOCK.monotonic_ms()
            # More may be handed out than before the backoff was asked.
            is_handing_out = self._look()
            self._timeouts.tick(now_ms, delays_ms)
            items = self._nacks(self._timeouts.due(now_ms))
            deadline_ms = self._timeouts.next_deadline_ms()
            if is_handing_out or deadline_ms is not None or self._timeouts.fresh_failures:
                next_tick_ms = now_ms + self._tick_ms
                self._timer.set(min(deadline_ms or next_tick_ms, next_tick_ms), now_ms)
        self._sender.fail(items)

    def _nacks(self, due: Iterable[EntryRun | TimedRows]) -> list[Nack]:
        """The part that was neither acknowledged nor failed otherwise. Called with the lock held."""
        nacks: list[Nack] = []
        for handed in due:
            if isinstance(handed, EntryRun):
                nacks += self._of_run(handed)
            else:
                nacks += self._of_block(handed)
        nacks.sort()
        return nacks

    def _of_run(self, run: EntryRun) -> Iterable[Nack]:
        state = self._state
        for entry_id in state.unacked.entries_between(run.ledger_id, run.first, run.last):
            if not state.nacks.holds(run.ledger_id, entry_id, run.redelivery_count):
                yield run.ledger_id, entry_id, (), run.redelivery_count

    def _of_block(self, handed: TimedRows) -> Iterable[Nack]:
        state = self._state
        ledger_id, first, count, rows, messages, is_batch = handed
        rows &= state.unacked.rows_of(ledger_id, first)
        if is_batch:
            rows = state.acks.outstanding_rows(ledger_id, first, rows, messages)
            if rows:
                # The batch comes again whole, and with it what would have failed later.
                rows |= row_sets.of_ranges(state.nacks.take(ledger_id, first, count))
        elif rows and len(state.nacks):
            for row in row_sets.numbers_of(rows).tolist():
                if state.nacks.holds(ledger_id, first + row, count):
                    rows &= ~(1 << row)
        if rows:
            yield ledger_id, first, row_sets.ranges_of(rows), count
