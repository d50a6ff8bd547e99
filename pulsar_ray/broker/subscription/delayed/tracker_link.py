"""A dispatcher's side of its tracker.

It keeps the time, asks, and takes in what is due. The next question is always due by the state of now
(`_wait_ms`), looked at after each turn and each second: no lost answer, and no tracker that was killed or
stands still, loses a time. Nothing else waits for an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.delayed.tracker_messages import FollowAnswer, FollowRequest
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.log.segment_blocks import ChunkReader, read_slots
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.delayed_blocks import AT_ONCE
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.errors import Moved, NotConnected, PulsarException, Timeout
from pulsar_ray.managed_ledger.delayed.delayed_rows import ALL_ROWS, SHARES_ENTRY, RowKey, read_rows
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.transport.cluster import Cluster

logger = logging.getLogger(__name__)

LEAST_GAP_MS = 20
"""Between two questions: what falls due meanwhile comes together."""
LONGEST_GAP_MS = 1_000
RETRY_MS = 200
REFUSED_MS = 2_000
START_DEADLINE_S = 30.0
FOLLOW_DEADLINE_S = 5.0
MOST_SEGMENTS = 64
LINGER_MS = 60_000
"""A tracker that has nothing to do stays so long."""


class TrackedSubscription(NamedTuple):
    """Whose tracker it is."""

    topic: str
    name: str
    number: int
    log_directory: str
    epoch: int


class TrackerLink:
    """Runs on the owner loop. `resume` lets the subscription take a turn."""

    def __init__(
        self,
        of: TrackedSubscription,
        core: Dispatcher,
        log: LogView,
        cluster: Cluster,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        reader: DiskThread,
        *,
        resume: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._of = of
        self._core = core
        self._log = log
        self._cluster = cluster
        self._clock = clock
        self._loop = loop
        self._reader = reader
        self._resume = resume
        self._on_fatal = on_fatal
        self._address = ""
        self._answer: FollowAnswer | None = None
        self._left_before = 0
        """Counts the entries that had been left when the last answer was asked for."""
        self._anew = 0
        self._is_asking = False
        self._is_closed = False
        self._asked_ms = -LONGEST_GAP_MS
        self._failed_ms: int | None = None
        self._retry_ms = RETRY_MS
        self._idle_since_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self.problem = ""
        """The reason why delayed messages do not come just now; "" if they do."""

    @property
    def is_needed(self) -> bool:
        """Whether anything is left to the tracker, as far as is known."""
        return self._core.delayed.left_through is not None

    @property
    def entries(self) -> int:
        """Count the waiting entries: those of the last answer, and those left since."""
        if not self.is_needed:
            return 0
        answer, left = self._answer, self._core.delayed.left_entries
        return left if answer is None else answer.entries + max(0, left - self._left_before)

    @property
    def due_in_ms(self) -> int | None:
        """How long until the next message is due, by the last answer; None without one."""
        answer = self._answer
        if answer is None or answer.next_ms is None or not self.is_needed:
            return None
        return max(0, answer.next_ms - self._clock.now_ms())

    # --- when -------------------------------------------------------------------------------------

    def update(self) -> None:
        """Ask now, or later, as the state of now wants it.

        To be called after each turn, and once a second.
        """
        if self._is_closed or self._is_asking or not self.is_needed:
            return
        now_ms = self._clock.monotonic_ms()
        if self._anew != self._core.delayed.anew:
            self._anew, self._answer = self._core.delayed.anew, None
        wait_ms = self._wait_ms(now_ms)
        if wait_ms is None:
            return
        if wait_ms <= 0:
            self._ask(now_ms)
        elif self._timer is None or now_ms + wait_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = now_ms + wait_ms
            self._timer = self._loop.call_later(wait_ms / 1000, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._core.delayed.now_ms = self._clock.now_ms()
        self.update()

    def _wait_ms(self, now_ms: int) -> int | None:
        """How long until the next question; None if nothing is to be asked."""
        since_ms = now_ms - self._asked_ms
        if self._failed_ms is not None:
            return self._retry_ms - (now_ms - self._failed_ms)
        answer, delayed = self._answer, self._core.delayed
        if answer is None:
            return 0
        left_through = delayed.left_through
        is_behind = left_through is not None and answer.through < left_through
        if is_behind or answer.has_more_to_do:
            return LEAST_GAP_MS - since_ms
        if answer.next_ms is None:
            return self._linger(now_ms)
        self._idle_since_ms = None
        wait_ms = LONGEST_GAP_MS - since_ms
        if self._core.due_wanted() > 0:
            due_by_ms = min(delayed.due_by_ms, AT_ONCE - 1)
            wait_ms = min(wait_ms, max(answer.next_ms - due_by_ms, LEAST_GAP_MS - since_ms))
        return wait_ms

    def _linger(self, now_ms: int) -> int | None:
        """Nothing is delayed any more: end the tracker after a while."""
        if self._idle_since_ms is None:
            self._idle_since_ms = now_ms
        if now_ms - self._idle_since_ms < LINGER_MS:
            return None
        self._idle_since_ms = None
        self._core.delayed.left_through = None
        self._answer = None
        self._loop.create_task(self.end())
        return None

    # --- asking -----------------------------------------------------------------------------------

    def _ask(self, now_ms: int) -> None:
        self._is_asking = True
        self._asked_ms = now_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        core = self._core
        delayed = core.delayed
        delayed.now_ms = self._clock.now_ms()
        answer, position = self._answer, core.intake.read_position
        read_from = (
            core.cursor.mark_delete if answer is None else max(answer.through, core.cursor.mark_delete)
        )
        request = FollowRequest(
            self._of.epoch,
            self._of.log_directory,
            self._of.number,
            read_from,
            tuple(self._log.segments_behind(read_from, MOST_SEGMENTS)),
            Position(position.ledger_id, position.entry_id - 1),
            core.cursor.mark_delete,
            delayed.taken,
            delayed.floor_ms,
            delayed.due_by_ms,
            core.due_wanted(),
            core.settings.most_delayed_rows_in_memory,
            self._anew,
        )
        self._loop.create_task(self._asked(request, core.reading_number, delayed.left_entries))

    async def _asked(self, request: FollowRequest, reading_number: int, left_before: int) -> None:
        try:
            answer = await self._loop.run_in_executor(None, self._call, request)
        except PulsarException as error:
            self._failed(error)
            return
        self._failed_ms = None
        if request.anew != self._core.delayed.anew:
            self._done()
            return
        self.problem = answer.problem
        if answer.dropped > self._core.delayed.taken:
            # The clock was set back between two lives of this dispatcher: it has left what is in no index.
            self._on_fatal(RuntimeError("the tracker has dropped rows that this dispatcher has left to it"))
            return
        self._answer, self._left_before = answer, left_before
        if not answer.rows or reading_number != self._core.reading_number:
            self._done()
            return
        blocks, last = due_blocks(answer.rows)
        self._take(blocks, last, reading_number)

    def _call(self, request: FollowRequest) -> FollowAnswer:
        """In a thread: ask the tracker, which is started if there is none."""
        of, cluster = self._of, self._cluster
        if not self._address:
            self._address = cluster.controller(
                "delayed_tracker", of.topic, of.name, timeout_s=START_DEADLINE_S
            )
        try:
            answer: FollowAnswer = cluster.call(self._address, "follow", request, timeout_s=FOLLOW_DEADLINE_S)
        except Moved:
            self._address = ""
            raise
        except Timeout:
            cluster.report_silent(self._address)
            raise
        return answer

    def _failed(self, error: PulsarException) -> None:
        self._failed_ms = self._clock.monotonic_ms()
        self._is_asking = False
        is_restarting = isinstance(error, (Moved, NotConnected))
        self._retry_ms = RETRY_MS if is_restarting else REFUSED_MS
        if not is_restarting:
            text = f"delayed messages wait for their tracker: {error}"
            if text != self.problem:
                logger.warning("subscription %s: %s", self._of.name, text)
            self.problem = text
        self.update()

    # --- taking in --------------------------------------------------------------------------------

    def _take(self, blocks: list[tuple[BlockRef, RowSet]], last: RowKey, reading_number: int) -> None:
        core = self._core
        blocks = [(ref, rows) for ref, rows in blocks if core.intake.has_unacknowledged(ref)]
        refs = [ref for ref, _ in blocks]
        rows = [rows for _, rows in blocks]
        # Behind a seek, rows come of blocks that were not read again: they may be the last of several chunks.
        position = core.intake.read_position
        ahead = [ref for ref in refs if ref.messages == 1 and (ref.ledger_id, ref.first_entry_id) >= position]
        if (core.type.slotting is None and not ahead) or not refs:
            core.take_due(ReadBlocks(refs), rows, last, reading_number)
            self._done()
            return
        slotting, directory = core.type.slotting, self._of.log_directory
        chunks = ChunkReader(self._log.segments, {})

        def read() -> ReadBlocks:
            slots = None if slotting is None else read_slots(directory, refs, slotting)
            return ReadBlocks(refs, slots, chunks=chunks.read(ahead))

        def done(blocks: ReadBlocks | None, error: BaseException | None) -> None:
            is_wanted = core.type.slotting is slotting and core.delayed.anew == self._anew
            if blocks is not None and is_wanted:
                core.take_due(blocks, rows, last, reading_number)
            elif error is not None:
                self.problem = f"reading the headers of delayed messages: {error}"
                logger.error("subscription %s: %s", self._of.name, self.problem)
                self._failed_ms = self._clock.monotonic_ms()
            self._done()

        self._reader.submit(read, done)

    def _done(self) -> None:
        self._is_asking = False
        self._resume()

    # --- ending -----------------------------------------------------------------------------------

    async def end(self) -> None:
        """Let the tracker's process end; the next question starts another one."""
        address, self._address = self._address, ""
        if address:
            try:
                await self._loop.run_in_executor(
                    None, lambda: self._cluster.controller("end_tracker", address, timeout_s=START_DEADLINE_S)
                )
            except PulsarException as error:
                logger.warning("the tracker of %s was not ended: %s", self._of.name, error)

    def close(self) -> None:
        """Ask no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def due_blocks(data: bytes) -> tuple[list[tuple[BlockRef, RowSet]], RowKey]:
    """Put the rows of an answer together by their blocks; returns the last key, too."""
    blocks: dict[tuple[int, int], tuple[BlockRef, RowSet]] = {}
    last = None
    for last in read_rows(data):
        place = (last.ledger_id, last.first_entry_id)
        known = blocks.get(place)
        if known is None:
            messages = last.messages & (SHARES_ENTRY - 1)
            is_batch = bool(last.messages & SHARES_ENTRY)
            entries = 1 if is_batch else messages
            ref = BlockRef(
                last.ledger_id,
                last.segment_index,
                last.offset,
                last.length,
                last.first_entry_id,
                entries,
                messages,
                entries > 1,
                is_marked=True,
            )
            known = ref, 0
        ref = known[0]
        rows = ref.all_rows if last.row == ALL_ROWS else 1 << last.row
        blocks[place] = ref, known[1] | rows
    assert last is not None
    return list(blocks.values()), last.key
