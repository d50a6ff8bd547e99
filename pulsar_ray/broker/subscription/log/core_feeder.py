"""Feeding a dispatcher's core with the log, from memory or from files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers
from pulsar_ray.broker.subscription.cursor_flusher import CursorDurability
from pulsar_ray.broker.subscription.log.compacted_log import CompactedLog, KeptBlocks
from pulsar_ray.broker.subscription.log.log_view import FileRead, FramePlace
from pulsar_ray.broker.subscription.log.segment_blocks import ChunkReader, read_delays, read_slots
from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.model import row_sets
from pulsar_ray.model.message_id import Position

logger = logging.getLogger(__name__)


RETRY_READ_S = 1.0


class CoreFeeder:
    """Gives a dispatcher's core the entries that it wants.

    Runs on the owner loop; files are read on `reader`.

    A cursor that nothing `holds` entries for goes on at the first entry that is left. Consumers whose queues
    have to go because of what was read are sent that at once.
    """

    def __init__(
        self,
        name: str,
        core: Dispatcher,
        log: CompactedLog,
        consumers: ConnectedConsumers,
        durability: CursorDurability,
        loop: asyncio.AbstractEventLoop,
        reader: DiskThread,
        directory: str,
        *,
        holds: bool,
    ) -> None:
        self._name = name
        self._core = core
        self._log = log
        self._view = log.view
        self._consumers = consumers
        self._durability = durability
        self._loop = loop
        self._reader = reader
        self._directory = directory
        self._holds = holds
        self._place: FramePlace | None = None
        self.is_reading = False
        """Whether a file is being read."""
        self._newest_ledger_id = -1
        self.problem = ""
        """The error of what could not be read, for stats; "" if there is none."""
        self._damage = ""
        """The last damage that was left out: it stays, unlike what the disk refused once."""

    def feed(self, resume: Callable[[], None]) -> bool:
        """Offer entries now; True if there were any.

        `resume` is called once a file has brought some.
        """
        core = self._core
        if self.is_reading or not core.consumers:
            return False
        position = core.intake.read_position
        if core.type.policy.active is not None or self._log.is_read_compacted:
            self.look_who_reads()
        if position > self._view.last or (wanted := core.blocks_wanted()) <= 0:
            return False
        is_compacted = self._log.is_read_compacted and self._log.is_compacted_at(position)
        blocks = None if is_compacted else self._view.blocks_from(position, wanted)
        if blocks is None:
            read = self._read_kept if is_compacted else self._read_file
            return read(position, wanted, resume)
        if not blocks:
            return False
        if self.problem:
            self._went_on()
        has_marked = self._view.has_marked
        if has_marked:
            core.delayed.has_met = True
            has_marked = any(ref.is_marked for ref in blocks)
        if core.type.slotting is not None or has_marked:
            self._read_headers(blocks, resume, has_marked=has_marked)
            return False
        self._offer(ReadBlocks(blocks), core.reading_number)
        return True

    def look_who_reads(self) -> None:
        """Read what compaction has kept, or the log itself, as the active consumer wants it."""
        core = self._core
        active = core.type.policy.active
        endpoint = None if active is None else self._consumers.get(active.spec.incarnation)
        if endpoint is not None:
            is_clean = not (self.is_reading or core.blocks.index or core.blocks.chunks)
            if self._log.read_by(
                endpoint.incarnation,
                core.intake.read_position,
                is_read_compacted=endpoint.is_read_compacted,
                is_clean=is_clean,
                goes_on=endpoint.was_open,
            ):
                self.extend_ledgers()
        if self._log.is_read_compacted and not self.is_reading:
            self._log.look(core.intake.read_position, is_held=self._holds)

    def _read_kept(self, position: Position, wanted: int, resume: Callable[[], None]) -> bool:
        """Begin to read what compaction has kept; True if that is nothing from here on."""
        log, core = self._log, self._core
        compacted = log.compacted
        assert compacted is not None
        read = log.kept_from(position, self._place, wanted)
        if read is None:
            behind = compacted.horizon.next()
            self._acknowledge_removed(position, behind)
            core.intake.pass_removed(behind)
            self._place = None
            self._durability.flush_soon()
            return True
        self.is_reading = True
        number = core.reading_number
        begun = core.blocks.chunks.begun

        def done(kept: KeptBlocks | None, error: BaseException | None) -> None:
            self.is_reading = False
            if kept is None:
                self._read_failed(position, error, resume)
                return
            if self.problem:
                self._went_on()
            self._place = read.place
            if number == core.reading_number and log.compacted is not None and kept.blocks.refs:
                self._take_kept(position, kept, number)
            resume()

        self._reader.submit(lambda: read.run(dict(begun)), done)
        return False

    def _take_kept(self, position: Position, kept: KeptBlocks, reading_number: int) -> None:
        """Take in what was kept, and count what was removed before and between as acknowledged."""
        self.extend_ledgers()
        acknowledgments = self._core.acknowledgments
        for ref, removed in zip(kept.blocks.refs, kept.removed, strict=True):
            first = Position(ref.ledger_id, ref.first_entry_id)
            if first > position:
                self._acknowledge_removed(position, first)
            if removed and ref.row_is_entry:
                size = (removed.bit_length() + 7) // 8
                acknowledgments.acknowledge_bits(
                    (ref.ledger_id, ref.first_entry_id, removed.to_bytes(size, "little"))
                )
            elif removed:
                rows = row_sets.ranges_of(removed)
                acknowledgments.acknowledge_removed(first, rows, ref.messages)
            position = Position(ref.ledger_id, ref.last_entry_id + 1)
        self._offer(kept.blocks, reading_number)
        self._durability.flush_soon()

    def _acknowledge_removed(self, first: Position, end: Position) -> None:
        """Acknowledge the entries from one up to another, which compaction has removed."""
        self._core.acknowledgments.acknowledge_ranges(
            (ledger_id, start, stop)
            for ledger_id, last in self._log.ledgers
            if first.ledger_id <= ledger_id <= end.ledger_id
            and (start := first.entry_id if ledger_id == first.ledger_id else 0)
            <= (stop := end.entry_id - 1 if ledger_id == end.ledger_id else last)
        )

    def extend_to_end(self) -> None:
        """Extend the cursor to the log's end: unread entries are backlog, and may be acknowledged."""
        core, last = self._core, self._view.last
        if core.intake.read_position <= last:
            if last.ledger_id != self._newest_ledger_id:
                # Behind the end of a ledger that was closed meanwhile there would seem to be nothing.
                self._newest_ledger_id = last.ledger_id
                self.extend_ledgers()
            core.cursor.ledgers.extend(*last)

    def extend_ledgers(self) -> None:
        """Tell the cursor where the ledgers of the log end."""
        self._core.cursor.set_ledgers(self._log.ledgers)

    def begin_again(self) -> None:
        """Read from elsewhere from now on, and of the newest form: the core was sought."""
        self._place = None
        self._went_on()
        self._log.begin()

    def read_again(self) -> None:
        """Read from the files what comes next, whatever is in memory."""
        self._place = None
        self._view.forget_tail()

    def _read_headers(self, blocks: list[BlockRef], resume: Callable[[], None], *, has_marked: bool) -> None:
        """Read keys, times and chunks of blocks: frames in memory do not hold them."""
        self.is_reading = True
        number, position = self._core.reading_number, self._core.intake.read_position
        slotting, directory = self._core.type.slotting, self._directory
        chunks = self._chunk_reader() if has_marked else None
        reads_delays = has_marked and self._core.delayed.is_heeded

        def read() -> ReadBlocks:
            return ReadBlocks(
                blocks,
                None if slotting is None else read_slots(directory, blocks, slotting),
                read_delays(directory, blocks) if reads_delays else None,
                None if chunks is None else chunks.read(blocks),
            )

        def done(read: ReadBlocks | None, error: BaseException | None) -> None:
            self.is_reading = False
            if read is None:
                self._read_failed(position, error, resume)
                return
            if self.problem:
                self._went_on()
            self._offer(read, number)
            resume()

        self._reader.submit(read, done)

    def _chunk_reader(self) -> ChunkReader:
        return ChunkReader(self._view.segments, self._core.blocks.chunks.begun)

    def _offer(self, read: ReadBlocks, reading_number: int) -> None:
        self.extend_to_end()
        if drops := self._core.offer(read, reading_number):
            self._consumers.drop_queues(drops)
            self._durability.flush_soon()

    def _read_file(self, position: Position, wanted: int, resume: Callable[[], None]) -> bool:
        """Begin to read a file; True if all that there was is deleted instead."""
        read = self._view.reader_from(position, self._place, wanted)
        if read is None:
            return self._has_passed_deleted(position)
        self.is_reading = True
        number, slotting = self._core.reading_number, self._core.type.slotting
        reads_delays = self._core.delayed.is_heeded
        chunks = self._chunk_reader()

        def done(blocks: ReadBlocks | None, error: BaseException | None) -> None:
            self.is_reading = False
            if blocks is None:
                self._read_failed(position, error, resume)
                return
            self._file_was_read(read, blocks, number, resume)

        self._reader.submit(lambda: read.run(slotting, chunks, reads_delays=reads_delays), done)
        return False

    def _file_was_read(
        self, read: FileRead, blocks: ReadBlocks, reading_number: int, resume: Callable[[], None]
    ) -> None:
        self._place = read.place
        for damage in read.damage:
            # It stays unacknowledged: whoever repairs the file can still have it delivered.
            if (text := str(damage)) != self._damage:
                logger.error("subscription %s goes on behind damage: %s", self._name, text)
            self._damage = text
        self._went_on()
        if blocks.refs:
            if not self._view.has_marked and any(ref.is_marked for ref in blocks.refs):
                self._view.has_marked = True
            self._core.delayed.has_met |= self._view.has_marked
            self._offer(blocks, reading_number)
            resume()
        else:
            # The segment ends before the position: nothing more is in it, and the next one is not known yet.
            self._loop.call_later(RETRY_READ_S, resume)

    def _read_failed(
        self, position: Position, error: BaseException | None, resume: Callable[[], None]
    ) -> None:
        if isinstance(error, SegmentGone) and (
            (self._log.is_compacted_at(position) and self._log.take_newest(position))
            or self._has_passed_deleted(position)
        ):
            resume()
            return
        if isinstance(error, SegmentGone) and not self._holds:
            # The partition has not sent yet what it trimmed.
            self._loop.call_later(RETRY_READ_S, resume)
            return
        core = self._core
        if position != core.intake.read_position:
            # Sought meanwhile, or skipped: what failed there is nobody's problem now.
            resume()
            return
        problem = f"reading the log from {tuple(position)}: {error}"
        if problem != self.problem:
            self.problem = problem
            logger.error("subscription %s: %s", self._name, problem)
        self._consumers.stand(core.type.policy.active, error, core.generation, self._loop.time())
        self._loop.call_later(RETRY_READ_S, resume)

    def _went_on(self) -> None:
        """Note that reading works again."""
        if self.problem != self._damage:
            self._consumers.go_on(self._core.generation)
        self.problem = self._damage

    def _has_passed_deleted(self, position: Position) -> bool:
        """Read on behind what is deleted; False if nothing is known to be."""
        if self._holds:
            has_passed = self._core.intake.pass_acknowledged()
        elif has_passed := self._log.first > position:
            self._consumers.drop_queues(self._core.seek(self._log.first))
            self._durability.flush_soon()
        if has_passed:
            self._place = None
        return has_passed


STANDS_MS = 10_000


class ReadingWatch:
    """Looked at once a second; costs a search for the first unacknowledged entry.

    Reading stands still where consumers have room and either nothing is read of what is there, or nothing is
    outstanding while an entry that was read past is not acknowledged. Neither should ever be. A view of the
    log with a hole in it does that, and the files have no hole. Each place is read again once: what is
    damaged stays behind.
    """

    def __init__(self, core: Dispatcher, log: CompactedLog, feeder: CoreFeeder) -> None:
        self._core = core
        self._log = log
        self._feeder = feeder
        self._seen: tuple[Position | None, Position] | None = None
        self._since_ms = 0
        self._read_again_at: Position | None = None
        self.reason = ""
        """Where reading stands still; empty while it does not."""

    def look(self, now_ms: int) -> str:
        """Return what to warn of, if a standstill was noticed just now.

        It is read again then.
        """
        core = self._core
        place = self._standing_at()
        seen = place, core.intake.read_position
        if place is None or seen != self._seen:
            if place is None or place != self._read_again_at:
                self.reason = ""
            self._seen, self._since_ms = seen, now_ms
            return ""
        if now_ms - self._since_ms < STANDS_MS or place == self._read_again_at:
            return ""
        self._read_again_at = place
        self.reason = f"reading stands still at {place.ledger_id}:{place.entry_id}"
        if place < core.intake.read_position:
            core.read_again(place)
        self._feeder.read_again()
        return self.reason

    def _standing_at(self) -> Position | None:
        """The next entry to be read, if it is time for that now."""
        core, feeder = self._core, self._feeder
        if not core.consumers or feeder.is_reading or feeder.problem or core.blocks_wanted() <= 0:
            return None
        position = core.intake.read_position
        return position if position <= self._log.view.last else core.passed_over()
