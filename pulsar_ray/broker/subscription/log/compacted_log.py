"""A dispatcher's log as one subscription reads it, compacted or not.

Of a compacted log the kept entries stand in place of all up to the horizon, and the log goes on behind it.
Removed messages count as acknowledged once reading has come by (ADR 0128).

A reading keeps to the form that it began with, or to none, and reads the log behind that form's horizon: in a
newer form removals are missing that this reading has not come by yet (ADR 0136). One that has lost its form,
or the log behind that, reads of the newest form only what is trimmed of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.broker.subscription.log.log_view import FileRead, FramePlace, LogView
from pulsar_ray.broker.subscription.log.segment_blocks import ChunkReader, Segment, SegmentWindow
from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.format.block import parse_block_header
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.segment_file import COMPACTED_INDEX, segment_name
from pulsar_ray.managed_ledger.compaction.compacted_form import FormLock
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted
from pulsar_ray.managed_ledger.log.manifest_changes import mark_delete_before
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.model.row_sets import RowSet

_WINDOW_BYTES = 256 * 1024
_HEADER_BYTES = 512
_READ_WHOLE_BYTES = 32 * 1024


class KeptBlocks(NamedTuple):
    """Blocks of a compacted form, each with the rows that were removed of it."""

    blocks: ReadBlocks
    removed: Sequence[RowSet]


class CompactedLog:
    """Belongs to one subscription, whose active consumer says whether `is_read_compacted`."""

    def __init__(self, view: LogView, directory: str) -> None:
        self.view = view
        """The log itself."""
        self._directory = Path(directory)
        self.is_read_compacted = False
        self._reader = -1
        """The consumer that was active last."""
        self._chosen: Compacted | None = None
        """The form that this reading keeps to."""
        self._began_at: Position | None = None
        self._is_rest = False
        """Whether this reading goes on from one whose form nobody has."""
        self._next: tuple[Position, Position] | None = None
        """A read position, and the first entry that there was from it on."""
        self._known: Compacted | None = None
        self._form = LogView()
        self._lock: FormLock | None = None
        self._locked_index = -1
        self._is_closed = False
        self._former: list[tuple[int, FormLock]] = []
        """Of forms that another has replaced, by the index of their segments."""

    @property
    def first(self) -> Position:
        """The first entry there is to read."""
        kept = None if self.compacted is None else self.compacted.first
        return self.view.first if kept is None else min(kept, self.view.first)

    @property
    def ledgers(self) -> list[tuple[int, int]]:
        """(ledger id, last entry id) of each ledger that has something to read."""
        compacted = self.compacted
        if compacted is None:
            return self.view.ledgers
        last = {ledger_id: last_entry_id for ledger_id, last_entry_id, *_ in compacted.segments}
        return sorted({**last, **dict(self.view.ledgers)}.items())

    # ---- what compaction has kept

    @property
    def compacted(self) -> Compacted | None:
        """The form that is read in place of the log; None if none is."""
        return self._chosen if self.is_read_compacted else None

    def read_by(
        self, incarnation: int, position: Position, *, is_read_compacted: bool, is_clean: bool, goes_on: bool
    ) -> bool:
        """Let a consumer be the active one; True if another reading begins with it.

        It reads from a position on. No other reading begins unless all is settled that was read before
        (`is_clean`): the consumer would get that, and then a form without the removals in between. One that
        `goes_on` where an earlier dispatcher ended has the log itself, as far as that is there.
        """
        if incarnation == self._reader:
            return False
        is_first, self._reader = self._reader < 0, incarnation
        was_read_compacted, self.is_read_compacted = self.is_read_compacted, is_read_compacted
        begins = is_clean or is_read_compacted != was_read_compacted
        if is_first and goes_on:
            self._go_on(position)
        elif begins:
            self.begin()
        return begins

    def begin(self) -> None:
        """Begin another reading, of the newest form."""
        self._chosen = self.view.compacted
        self._began_at = self._next = None
        self._is_rest = False

    def _go_on(self, position: Position) -> None:
        """Read the newest form as far as the log is trimmed, then the log itself.

        It has all removals since the form that was read before, for the log behind that was kept.
        """
        newest, first = self.view.compacted, self.view.first
        if newest is None or position >= first:
            self._chosen = None
        elif not first.entry_id and first <= min(newest.horizon, self.view.last):
            self._chosen = _before(newest, first)
        else:
            self._chosen = newest
        self._began_at, self._next = EARLIEST, None
        self._is_rest = True

    def look(self, position: Position, *, is_held: bool) -> None:
        """Take the newest form before anything is read, and where the log is gone.

        No file is being read. Unless entries from the position on are held, they may be gone.
        """
        newest, chosen = self.view.compacted, self._chosen
        if self._began_at is None:
            self._began_at = position
        if newest is chosen:
            return
        is_same = newest is not None and chosen is not None and newest.number == chosen.number
        if newest is None or position == self._began_at or (is_same and not self._is_rest):
            self._chosen = newest  # without any form the topic was truncated
        elif not is_held and self._is_lost(position):
            self._go_on(position)

    def take_newest(self, position: Position) -> bool:
        """Read on from a position in the newest form; False if there is no other."""
        newest = self.view.compacted
        if newest is None or self._chosen is None or newest.number == self._chosen.number:
            return False
        self._go_on(position)
        return True

    def _is_lost(self, position: Position) -> bool:
        """Whether entries from a position on are trimmed."""
        compacted = self.compacted
        if compacted is not None and position <= compacted.horizon:
            return False
        first = self.view.first
        if position >= first:
            if position.ledger_id != self.view.last.ledger_id:
                self._next = position, self._next_of(position)
            return False
        return self._next is None or self._next[0] != position or self._next[1] < first

    def _next_of(self, position: Position) -> Position:
        """The first entry from a position on, perhaps of a later ledger."""
        for ledger_id, last in self.view.ledgers:
            if ledger_id > position.ledger_id:
                return Position(ledger_id, 0)
            if ledger_id == position.ledger_id and position.entry_id <= last:
                break
        return position

    def needed_behind(self, mark_delete: Position) -> Position:
        """The entry behind which this reading needs the log itself."""
        compacted = self.compacted
        return mark_delete if compacted is None else max(mark_delete, compacted.horizon)

    @property
    def last_kept(self) -> Position:
        """The last entry there is to read, EARLIEST if there is none."""
        compacted = self.compacted
        if compacted is None or self.view.last > compacted.horizon:
            return self.view.last
        return Position(*compacted.last[:2]) if compacted.last[0] >= 0 else EARLIEST

    def removed_from(self, position: Position) -> int:
        """About how many entries from a position on compaction has removed.

        Exact but for the ledger that reading is in the middle of, which counts once it has been read.
        """
        compacted = self.compacted
        if compacted is None:
            return 0
        kept = {ledger_id: rest for ledger_id, *rest in compacted.segments}
        horizon, removed = compacted.horizon, 0
        for ledger_id, last in self.ledgers:
            if not position.ledger_id <= ledger_id <= horizon.ledger_id:
                continue
            start = position.entry_id if ledger_id == position.ledger_id else 0
            end = min(last, horizon.entry_id) if ledger_id == horizon.ledger_id else last
            _, first_kept, last_kept, _, entries = kept.get(ledger_id, (0, 0, -1, 0, 0))
            if start <= first_kept:
                removed += max(end - start + 1 - entries, 0)
            elif start > last_kept:
                removed += max(end - start + 1, 0)
        return removed

    def is_compacted_at(self, position: Position) -> bool:
        """Whether what compaction has kept is read at a position."""
        chosen = self._chosen
        return self.is_read_compacted and chosen is not None and position <= chosen.horizon

    def kept_from(self, position: Position, place: FramePlace | None, max_messages: int) -> KeptRead | None:
        """Reading what compaction has kept from a position on; None if that is nothing."""
        compacted = self.compacted
        assert compacted is not None
        if self._known is not compacted:
            self._known = compacted
            index = COMPACTED_INDEX + compacted.number
            self._form.take_segments(
                Segment(
                    ledger_id,
                    index,
                    str(self._directory / segment_name(ledger_id, index)),
                    first,
                    end_offset,
                    last,
                )
                for ledger_id, _, first, last, end_offset, _ in compacted.segments
            )
        read = self._form.reader_from(position, place, max_messages)
        return None if read is None else KeptRead(read, self._form.segments, self)

    def hold(self, segments: Sequence[Segment]) -> None:
        """Keep the files of a form until nothing of it is under way. Raises SegmentGone."""
        if self._is_closed:
            raise SegmentGone(segments[0].path)
        index = segments[0].segment_index
        if self._locked_index != index:
            lock = FormLock(Path(segments[0].path))
            if self._lock is not None:
                self._former.append((self._locked_index, self._lock))
            self._lock, self._locked_index = lock, index

    def let_go(self, used: set[int], position: Position, *, is_reading: bool) -> None:
        """Let go of forms that are neither in use nor read from a position on."""
        self._former = [each for each in self._former if each[0] in used]
        compacted = self.compacted
        is_read = (
            compacted is not None
            and position <= compacted.horizon
            and self._locked_index == COMPACTED_INDEX + compacted.number
        )
        if self._lock is not None and self._locked_index not in used and not (is_reading or is_read):
            self._lock.release()
            self._lock, self._locked_index = None, -1

    def close(self) -> None:
        """Let go of all forms now.

        The thread that read them last may keep this object for long.
        """
        self._is_closed = True
        locks = [lock for _, lock in self._former]
        if self._lock is not None:
            locks.append(self._lock)
        self._former, self._lock, self._locked_index = [], None, -1
        for lock in locks:
            lock.release()


def _before(compacted: Compacted, first: Position) -> Compacted:
    """A form as if it ended before the first entry of a ledger."""
    end = mark_delete_before(first)
    segments = [segment for segment in compacted.segments if segment[0] < first.ledger_id]
    return compacted._replace(
        horizon_ledger_id=end.ledger_id, horizon_entry_id=end.entry_id, segments=segments
    )


class KeptRead:
    """Reads a part of a compacted form; `run` on a thread."""

    def __init__(self, read: FileRead, segments: Sequence[Segment], log: CompactedLog) -> None:
        self._read = read
        self._segments = segments
        self._log = log

    @property
    def place(self) -> FramePlace | None:
        """Where the next read goes on."""
        return self._read.place

    def run(self, chunks: dict[int, str]) -> KeptBlocks:
        """Return blocks with what was removed of them.

        Raises SegmentGone, and CorruptData for damage: what cannot be read must not pass for removed.
        """
        self._log.hold(self._segments)
        blocks = self._read.run(None, ChunkReader(self._segments, chunks))
        if self._read.damage:
            raise self._read.damage[0]
        removed: list[RowSet] = []
        if blocks.refs:
            ref = blocks.refs[0]
            name = segment_name(ref.ledger_id, ref.segment_index)
            with SegmentReader(Path(self._segments[0].path).parent / name) as reader:
                window = SegmentWindow(reader, blocks.refs[-1].offset + blocks.refs[-1].length)
                removed = [_removed_of(window, each) for each in blocks.refs]
        return KeptBlocks(blocks, removed)


def _removed_of(window: SegmentWindow, ref: BlockRef) -> RowSet:
    if ref.messages == 1:
        return 0
    ahead = _WINDOW_BYTES if ref.length <= _READ_WHOLE_BYTES else 0
    data = window.read(ref.offset, min(ref.length, _HEADER_BYTES), ahead)
    needed = min(int.from_bytes(data[8:12], "little"), ref.length)
    if needed > len(data):
        data = window.read(ref.offset, needed)
    removed = parse_block_header(data, 0, window.path).metadata().removed_rows
    return 0 if removed is None else int.from_bytes(removed, "little")
