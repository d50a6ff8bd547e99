"""Reads the delayed rows out of a log's segment files, a portion at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsar_ray.broker.subscription.log.delay_reader import delays_in
from pulsar_ray.broker.subscription.log.log_view import FramePlace
from pulsar_ray.broker.subscription.log.segment_blocks import Segment, blocks_of
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.errors import CorruptData
from pulsar_ray.format.delivery_times import DeliveryTimes
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.recovery import find_frame
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
