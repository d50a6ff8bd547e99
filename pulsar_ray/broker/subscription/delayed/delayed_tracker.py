"""A subscription's tracker of delayed messages on one partition, without Ray.

It reads the log itself, as far as its dispatcher has: what is delayed goes into its index, and what is due is
handed to the dispatcher that asks. All of it happens within `follow`, a portion in each call, so that it has
no time of its own to lose: the dispatcher keeps the time, and asks again. Killed at any moment it goes on
from its files, and from the log behind them.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from pulsar_ray.broker.subscription.delayed.log_scan import LogScan
from pulsar_ray.broker.subscription.delayed.tracker_messages import FollowAnswer, FollowRequest
from pulsar_ray.clock import Clock
from pulsar_ray.errors import BrokerPersistenceError, CorruptData, Fenced, Moved
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.delayed.delayed_index import DelayedIndex
from pulsar_ray.managed_ledger.delayed.delayed_rows import empty_rows

logger = logging.getLogger(__name__)

FLUSH_AFTER_MS = 30_000
"""After a crash the log is read again from so long ago, at most."""
LEAST_FLUSH_ROWS = 64


def index_directory(log_directory: Path, subscription_number: int) -> Path:
    """Where the index of a subscription is: it goes with the cursor's directory."""
    return cursor_directory(log_directory, subscription_number) / "delayed"


class DelayedTracker:
    """Serves one dispatcher after the other; one thread calls it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._index: DelayedIndex | None = None
        self._scan = LogScan()
        self._epoch = -1
        self._made_anew = (-1, 0)
        self._flushed_ms = 0
        self._problem = ""
        self._follows = 0

    def follow(self, request: FollowRequest) -> FollowAnswer:
        """Take in where the dispatcher is, read on, and answer what is due.

        Raises Moved for a former dispatcher's request, BrokerPersistenceError if the disk fails; the same
        request may be made again.
        """
        if request.epoch < self._epoch:
            raise Moved(f"a dispatcher of epoch {self._epoch} follows already")
        self._epoch = request.epoch
        self._follows += 1
        try:
            index = self._opened(request)
            try:
                return self._followed(index, request)
            except CorruptData as error:
                self._problem = f"the index of delayed messages is made anew: {error}"
                logger.error(self._problem)
                index.start_over(request.mark_delete)
                return self._followed(index, request)
        except (OSError, Fenced) as error:
            self._give_up()
            raise BrokerPersistenceError(
                f"the index of delayed messages cannot be written: {error}"
            ) from error

    def _opened(self, request: FollowRequest) -> DelayedIndex:
        if self._index is None:
            directory = index_directory(Path(request.log_directory), request.subscription_number)
            if not directory.parent.is_dir():
                # The subscription was deleted meanwhile; its directory must not come back.
                raise Moved(f"{directory.parent} is gone")
            self._index = DelayedIndex.open(directory, request.mark_delete)
            self._scan = LogScan()
            self._flushed_ms = self._clock.monotonic_ms()
            if self._index.problem:
                self._problem = self._index.problem
                logger.error(self._problem)
        return self._index

    def _give_up(self) -> None:
        """Forget all: the next request takes the files over, and reads on behind them."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def _followed(self, index: DelayedIndex, request: FollowRequest) -> FollowAnswer:
        asked = (request.epoch, request.anew)
        if request.anew and asked != self._made_anew:
            index.make_anew(request.mark_delete)
            self._made_anew = asked
        index.set_taken(request.taken, request.floor_ms)
        if request.mark_delete < index.covers_from:
            # A seek went back: behind it are rows that were acknowledged, and left out since.
            index.start_over(request.mark_delete)
        elif request.mark_delete >= index.through:
            # All that it has is acknowledged.
            index.skip_to(request.mark_delete)
        self._read(index, request)
        rows = index.due(request.until_ms, request.messages) if request.messages > 0 else empty_rows()
        is_merging = index.work(request.mark_delete)
        return FollowAnswer(
            index.through,
            index.dropped,
            rows.tobytes(),
            index.next_time(),
            index.entries_waiting(request.until_ms),
            is_merging or index.through < request.through,
            self._problem,
        )

    def _read(self, index: DelayedIndex, request: FollowRequest) -> None:
        # A tracker that was killed has read less than it had answered: it says so, and is given the rest.
        if request.behind <= index.through < request.through:
            rows, through = self._scan.read(request.segments, index.through, request.through)
            if through > index.through:
                index.add(rows, through)
        now_ms = self._clock.monotonic_ms()
        is_full = index.rows_in_memory >= max(request.most_in_memory // 2, LEAST_FLUSH_ROWS)
        is_due = index.through > index.durable_through and now_ms - self._flushed_ms >= FLUSH_AFTER_MS
        if is_full or is_due:
            index.flush()
            self._flushed_ms = now_ms

    def stats(self) -> dict[str, Any]:
        """Describe it."""
        index = self._index
        if index is None:
            return {"problem": self._problem}
        return {
            "delayedEntries": index.entries,
            "rowsInMemory": index.rows_in_memory,
            "runs": index.run_count,
            "readThrough": list(index.through),
            "nextDeliverAt": index.next_time(),
            "requests": self._follows,
            "problem": self._problem,
        }

    def close(self) -> None:
        """Make the index durable and give it up."""
        if self._index is not None:
            try:
                self._index.flush()
            except (OSError, Fenced) as error:
                logger.warning("the index of delayed messages was not written at the end: %s", error)
            self._give_up()
