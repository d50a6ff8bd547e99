"""A dispatcher's view of its partition's log: durable end, segments, newest frames.

how far it is durable, which segments there are, and what came last.

The newest frames are kept in memory, so that a dispatcher that keeps up never reads a file; older ones are
read, headers only, on a thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.broker.subscription.log.segment_blocks import (
    ChunkReader,
    Segment,
    blocks_of,
    delays_in,
    slots_in,
)
from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.key_shared.sticky_key import Slotting
from pulsar_ray.errors import CorruptData
from pulsar_ray.format.frame import FrameHeader, parse_frame_header
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.recovery import find_frame
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.session.requests import Advanced

MAX_TAIL_BLOCKS = 8192
NEAR_BLOCKS = 16
"""So many of the newest are looked at one by one."""


class FramePlace(NamedTuple):
    """Where in the files reading goes on: the start of a frame."""

    ledger_id: int
    segment_index: int
    offset: int
    first_entry_id: int


class LogView:
    """Updated by `advanced`; `blocks_from` serves from memory, `reader_from` prepares reading files."""

    def __init__(self) -> None:
        self.epoch = -1
        self.last = EARLIEST
        self.first = EARLIEST
        self._segments: list[Segment] = []
        self._tail: deque[BlockRef] = deque()
        self._tail_end = (-1, -1)
        """The last entry of the newest frame."""
        self.compacted: Compacted | None = None
        """The compacted form of the log."""
        self.has_marked = False
        """Whether blocks were met that may be delayed or chunks."""

    # --- packets of the partition -----------------------------------------------------------------

    def advanced(self, packet: Advanced) -> None:
        """Take an Advanced packet; a late one changes nothing."""
        last = Position(packet.ledger_id, packet.entry_id)
        if packet.epoch < self.epoch or (packet.epoch == self.epoch and last < self.last):
            return
        if packet.epoch > self.epoch:
            self._tail.clear()
        self.epoch = packet.epoch
        if packet.segments is not None:
            self._segments = [Segment(*segment) for segment in packet.segments]
            if packet.compacted is not None:
                self.compacted = Compacted(*packet.compacted) if packet.compacted else None
        elif packet.tail is not None:
            self._replace_last(Segment(*packet.tail))
        if packet.frames and (packet.before_ledger_id, packet.before_entry_id) != self._tail_end:
            # Those of a packet that got lost, or was left out for want of room, stand between.
            self._tail.clear()
        for ledger_id, segment_index, offset, header in packet.frames:
            self._add_frame(ledger_id, segment_index, offset, parse_frame_header(header))
        if not packet.frames and last != self.last:
            # Something was left out: the tail has a hole, what follows it begins anew.
            self._tail.clear()
        self.last = last
        if (packet.first_ledger_id, packet.first_entry_id) != self.first:
            self.first = Position(packet.first_ledger_id, packet.first_entry_id)

    def take_segments(self, segments: Iterable[Segment]) -> None:
        """Take other segments than those that packets tell of."""
        self._segments = list(segments)

    def _replace_last(self, segment: Segment) -> None:
        if self._segments and self._segments[-1][:2] == segment[:2]:
            self._segments[-1] = segment

    def _add_frame(self, ledger_id: int, segment_index: int, offset: int, frame: FrameHeader) -> None:
        self._tail += blocks_of(ledger_id, segment_index, offset, frame)
        self._tail_end = (ledger_id, frame.last_entry_id)
        if frame.holds_marked_blocks:
            self.has_marked = True
        while len(self._tail) > MAX_TAIL_BLOCKS:
            self._tail.popleft()
        if self._segments:
            of_ledger, index, path, first_entry_id, _, _ = self._segments[-1]
            if (of_ledger, index) == (ledger_id, segment_index):
                end, last = offset + frame.total_length, frame.last_entry_id
                self._segments[-1] = Segment(ledger_id, segment_index, path, first_entry_id, end, last)

    def forget_tail(self) -> None:
        """Read everything from the files again."""
        self._tail.clear()

    # --- reading ----------------------------------------------------------------------------------

    @property
    def ledgers(self) -> list[tuple[int, int]]:
        """(ledger id, last entry id) of each ledger."""
        last: dict[int, int] = {}
        for segment in self._segments:
            last[segment.ledger_id] = segment.last_entry_id
        return list(last.items())

    def segments_behind(self, position: Position, limit: int) -> list[Segment]:
        """The first segments that hold entries behind a position, at most so many."""
        index = self.segment_at(position.next())
        return self._segments[index : index + limit]

    def blocks_from(self, position: Position, max_messages: int) -> list[BlockRef] | None:
        """Return blocks from `position` on out of memory; None if a file must be read."""
        tail = self._tail
        if not tail or position < (tail[0].ledger_id, tail[0].first_entry_id):
            return None
        index = len(tail) - 1
        # Usually it is near the end: searching a deque goes through half of it.
        farthest = max(index - NEAR_BLOCKS, 0)
        ref = tail[index]
        while index > farthest and (ref.ledger_id, ref.first_entry_id) > position:
            index -= 1
            ref = tail[index]
        if index and index == farthest:
            index = bisect_right(tail, position, 0, index + 1, key=_first_entry) - 1
        taken: list[BlockRef] = []
        messages = 0
        while index < len(tail) and messages < max_messages:
            ref = tail[index]
            index += 1
            if (ref.ledger_id, ref.first_entry_id + ref.entries) <= position:
                continue
            taken.append(ref)
            messages += ref.messages
        return taken

    @property
    def segments(self) -> list[Segment]:
        """All segments, as they are now."""
        return list(self._segments)

    def segment_at(self, position: Position) -> int:
        """Index of the segment that holds `position`, or of the first one behind it."""
        index = bisect_right(self._segments, (position.ledger_id, position.entry_id), key=_start) - 1
        if index >= 0:
            segment = self._segments[index]
            if segment.ledger_id == position.ledger_id and segment.last_entry_id >= position.entry_id:
                return index
        return bisect_left(self._segments, (position.ledger_id, position.entry_id), key=_start)

    def reader_from(self, position: Position, place: FramePlace | None, max_messages: int) -> FileRead | None:
        """Reading on from `position`; `place` is where the last read ended.

        None if no file holds it or anything behind.
        """
        index = self.segment_at(position)
        if index >= len(self._segments):
            return None
        segment = self._segments[index]
        offset = SEGMENT_HEADER_SIZE
        if place is not None and place[:2] == segment[:2] and place.first_entry_id <= position.entry_id:
            offset = place.offset
        return FileRead(self._segments[index:], offset, position, max_messages)


class FileRead:
    """Frame headers of one segment from `position` on; `run` reads them on a thread."""

    def __init__(
        self, segments: Sequence[Segment], offset: int, position: Position, max_messages: int
    ) -> None:
        self._segments = segments
        self._offset = offset
        self._position = position
        self._max_messages = max_messages
        self.place: FramePlace | None = None
        self.damage: list[CorruptData] = []
        """Damaged parts that were left out. Entries behind them come all the same."""

    def run(
        self,
        slotting: Slotting | None = None,
        chunks: ChunkReader | None = None,
        *,
        reads_delays: bool = False,
    ) -> ReadBlocks:
        """Return the blocks, and set the `place` to go on at.

        Blocks of later segments come only if damage left nothing in the first.

        With a `slotting` they come with their slots, and if `reads_delays` with their times. Raises
        SegmentGone if the first segment is not there.
        """
        offset = self._offset
        for segment in self._segments:
            with SegmentReader(Path(segment.path)) as reader:
                blocks = self._read(reader, segment, offset)
                slots = None if slotting is None else slots_in(reader, blocks, slotting)
                delays = None
                if reads_delays and any(ref.is_marked for ref in blocks):
                    delays = delays_in(reader, blocks)
            if blocks or not self.damage:
                found = None if chunks is None else chunks.read(blocks)
                return ReadBlocks(blocks, slots, delays, found)
            offset = SEGMENT_HEADER_SIZE
        return ReadBlocks([])

    def _read(self, reader: SegmentReader, segment: Segment, offset: int) -> list[BlockRef]:
        blocks: list[BlockRef] = []
        messages = 0
        frames = reader.frames(offset, segment.end_offset)
        while messages < self._max_messages:
            try:
                found = next(frames, None)
            except CorruptData as error:
                self.damage.append(error)
                least = self._position.entry_id if segment.ledger_id == self._position.ledger_id else 0
                sound = find_frame(reader, offset, segment.end_offset, segment.ledger_id, least)
                if sound is None:
                    break
                offset, frames = sound, reader.frames(sound, segment.end_offset)
                continue
            if found is None:
                break
            at, header = found
            self.place = FramePlace(segment.ledger_id, segment.segment_index, at, header.first_entry_id)
            offset = at + header.total_length
            for ref in blocks_of(segment.ledger_id, segment.segment_index, at, header):
                if (ref.ledger_id, ref.last_entry_id) >= self._position:
                    blocks.append(ref)
                    messages += ref.messages
        return blocks


def _first_entry(block: BlockRef) -> Position:
    return Position(block.ledger_id, block.first_entry_id)


def _start(segment: Segment) -> tuple[int, int]:
    return segment.ledger_id, segment.first_entry_id
