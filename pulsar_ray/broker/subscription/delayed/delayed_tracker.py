"""A subscription's tracker of delayed messages on one partition, without Ray.

It reads the log itself, as far as its dispatcher has: what is delayed goes into its index, and what is due is
handed to the dispatcher that asks. All of it happens within `follow`, a portion in each call, so that it has
no time of its own to lose: the dispatcher keeps the time, and asks again. Killed at any moment it goes on
from its files, and from the log behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsar_ray.broker.subscription.delayed.tracker_messages import FollowAnswer, FollowRequest
from pulsar_ray.broker.subscription.log.log_view import FramePlace
from pulsar_ray.broker.subscription.log.segment_blocks import Segment, blocks_of, delays_in
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.errors import BrokerPersistenceError, CorruptData, Fenced, Moved, RemoteStoreUnavailable
from pulsar_ray.format.delivery_times import DeliveryTimes
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.offloaded import UNREAD
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.recovery import find_frame
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.delayed.delayed_index import DelayedIndex
from pulsar_ray.managed_ledger.delayed.delayed_rows import ALL_ROWS, SHARES_ENTRY, empty_rows
from pulsar_ray.model.message_id import Position
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)


PORTION_ROWS = 50_000
PORTION_FRAMES = 2_000


class LogScan:
    """Remembers where in the files it is. A portion ends with a frame."""

    def __init__(self) -> None:
        self._place: FramePlace | None = None

    def read(
        self, segments: Sequence[Segment], behind: Position, through: Position
    ) -> tuple[NDArray[Any], Position]:
        """Return delayed rows of entries behind a position, and how far they go.

        Reading ends with the frame that holds `through`, or after a portion. Segments that are gone were
        acknowledged.
        """
        parts: list[NDArray[Any]] = []
        left = [PORTION_ROWS, PORTION_FRAMES]
        position = behind
        for segment in segments:
            end = Position(segment.ledger_id, segment.last_entry_id)
            if end <= position:
                continue
            if position >= through or min(left) <= 0:
                break
            try:
                with SegmentReader(Path(segment.path)) as reader:
                    position = self._read(reader, segment, position, through, parts, left)
            except SegmentGone:
                position = end
            except UNREAD as error:
                raise RemoteStoreUnavailable(error.text) from error  # the same request is made again
        return (np.concatenate(parts) if parts else empty_rows()), position

    def _read(
        self,
        reader: SegmentReader,
        segment: Segment,
        position: Position,
        through: Position,
        parts: list[NDArray[Any]],
        left: list[int],
    ) -> Position:
        ledger_id, index = segment.ledger_id, segment.segment_index
        offset, place = SEGMENT_HEADER_SIZE, self._place
        following = position.entry_id + 1 if position.ledger_id == ledger_id else 0
        if place is not None and place[:2] == segment[:2] and place.first_entry_id <= following:
            offset = place.offset
        frames = reader.frames(offset, segment.end_offset)
        while position < through and min(left) > 0:
            try:
                found = next(frames, None)
            except CorruptData as error:
                logger.error("delayed messages behind damage: %s", error)
                sound = find_frame(reader, offset, segment.end_offset, ledger_id, following)
                if sound is None:
                    return Position(ledger_id, segment.last_entry_id)
                offset, frames = sound, reader.frames(sound, segment.end_offset)
                continue
            if found is None:
                return Position(ledger_id, segment.last_entry_id)
            at, header = found
            offset = at + header.total_length
            self._place = FramePlace(ledger_id, index, offset, header.last_entry_id + 1)
            if header.last_entry_id < following:
                continue
            if header.holds_marked_blocks:
                blocks = blocks_of(ledger_id, index, at, header)
                for ref, times in zip(blocks, delays_in(reader, blocks), strict=True):
                    if times is not None and ref.last_entry_id >= following:
                        rows = delayed_rows_of(ref, times)
                        parts.append(rows)
                        left[0] -= len(rows)
            left[1] -= 1
            position = Position(ledger_id, header.last_entry_id)
        return position


def delayed_rows_of(ref: BlockRef, times: DeliveryTimes) -> NDArray[Any]:
    """Make the records of a block: a single one if all rows are due together."""
    place = (ref.ledger_id, ref.first_entry_id, ref.segment_index, ref.offset, ref.length)
    if ref.is_batch and not isinstance(times, int):
        times = max(times)
    if isinstance(times, int):
        if times <= 0:
            return empty_rows()
        rows = empty_rows(1)
        messages = ref.messages | SHARES_ENTRY if ref.is_batch else ref.messages
        rows[0] = (times, *place, messages, ALL_ROWS if ref.messages > 1 else 0)
        return rows
    column = np.frombuffer(times, np.int64)
    numbers = np.flatnonzero(column > 0)
    rows = empty_rows(len(numbers))
    names = ("ledger_id", "first_entry_id", "segment_index", "offset", "length")
    for name, value in zip(names, place, strict=True):
        rows[name] = value
    rows["deliver_at"] = column[numbers]
    rows["messages"] = ref.messages
    rows["row"] = numbers
    return rows


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
