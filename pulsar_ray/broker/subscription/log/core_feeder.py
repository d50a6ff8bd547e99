"""Gives a dispatcher's core the log, from memory or from files, as far ahead as it wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.log.log_view import FileRead, LogView, Place
from pulsar_ray.broker.subscription.log.slot_reader import read_slots
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import DropQueue
from pulsar_ray.dispatch.key_shared.sticky_key import Slots, Slotting
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.model.position import Position

logger = logging.getLogger(__name__)

RETRY_READ_S = 1.0


class CoreFeeder:
    """Runs on the owner loop; files are read on `reader`.

    `turn` is called when a file brought something to dispatch, `dropped` with the queues that have to go.
    A cursor that nothing `holds` entries for goes on at the first entry that is left.
    """

    def __init__(
        self,
        name: str,
        core: Dispatcher,
        log: LogView,
        loop: asyncio.AbstractEventLoop,
        reader: DiskThread,
        directory: str,
        *,
        holds: bool,
        turn: Callable[[], None],
        dropped: Callable[[list[DropQueue], bool], None],
    ) -> None:
        self._name = name
        self._core = core
        self._log = log
        self._loop = loop
        self._reader = reader
        self._directory = directory
        self._holds = holds
        self._turn = turn
        self._dropped = dropped
        self._place: Place | None = None
        self._is_reading = False
        self._newest_ledger_id = -1
        self.problem = ""

    def feed(self) -> bool:
        """Offer the core what it wants and memory has; True if that was anything."""
        core = self._core
        if self._is_reading or not core.consumers:
            return False
        position = core.read_position
        if position > self._log.last or (wanted := core.blocks_wanted()) <= 0:
            return False
        blocks = self._log.blocks_from(position, wanted)
        if blocks is None:
            self._read_file(position, wanted)
            return False
        if not blocks:
            return False
        if core.slotting is not None:
            self._read_slots(blocks, core.slotting)
            return False
        self._offer(blocks, None, core.seek_generation)
        return True

    def tell_end(self) -> None:
        """Let the core know that what is not read yet exists: it is backlog, and may be acknowledged."""
        core, last = self._core, self._log.last
        if core.read_position <= last:
            self._tell_ledgers()
            core.cursor.extend(last)

    def _tell_ledgers(self) -> None:
        """Where closed ledgers end is not known from what was read: behind that would seem to be nothing."""
        newest = self._log.last.ledger_id
        if newest != self._newest_ledger_id:
            self._newest_ledger_id = newest
            self._core.cursor.set_ledgers(self._log.ledgers)

    def forget_place(self) -> None:
        """The core reads from elsewhere from now on."""
        self._place = None

    def _read_slots(self, blocks: list[BlockRef], slotting: Slotting) -> None:
        """What memory has of blocks does not say their keys."""
        self._is_reading = True
        generation, position = self._core.seek_generation, self._core.read_position

        def done(slots: list[Slots] | None, error: BaseException | None) -> None:
            self._is_reading = False
            if slots is None:
                self._read_failed(position, error)
                return
            self._offer(blocks, slots, generation)
            self._turn()

        self._reader.submit(lambda: read_slots(self._directory, blocks, slotting), done)

    def _offer(self, blocks: list[BlockRef], slots: list[Slots] | None, seek_generation: int) -> None:
        self._tell_ledgers()
        dropped = self._core.offer(blocks, seek_generation, slots)
        self.tell_end()
        if dropped:
            self._dropped(dropped, False)

    def _read_file(self, position: Position, wanted: int) -> None:
        read = self._log.reader_from(position, self._place, wanted)
        if read is None:
            return
        self._is_reading = True
        generation, slotting = self._core.seek_generation, self._core.slotting

        def done(blocks: list[BlockRef] | None, error: BaseException | None) -> None:
            self._is_reading = False
            if blocks is None:
                self._read_failed(position, error)
                return
            self._file_was_read(read, blocks, generation)

        self._reader.submit(lambda: read.run(slotting), done)

    def _file_was_read(self, read: FileRead, blocks: list[BlockRef], generation: int) -> None:
        self._place = read.place
        for damage in read.damage:
            # It stays unacknowledged: whoever repairs the file can still have it delivered.
            if (text := str(damage)) != self.problem:
                logger.error("subscription %s goes on behind damage: %s", self._name, text)
            self.problem = text
        if blocks:
            self._offer(blocks, read.slots, generation)
            self._turn()
        else:
            # The segment ends before the position: nothing more is in it, and the next one is not known yet.
            self._loop.call_later(RETRY_READ_S, self._turn)

    def _read_failed(self, position: Position, error: BaseException | None) -> None:
        if isinstance(error, SegmentGone) and not self._holds:
            if self._log.first > position:
                self._dropped(self._core.seek(self._log.first), True)
            else:  # the partition has not said yet what it trimmed
                self._loop.call_later(RETRY_READ_S, self._turn)
            return
        self.problem = f"reading the log from {tuple(position)}: {error}"
        logger.error("subscription %s: %s", self._name, self.problem)
        self._loop.call_later(RETRY_READ_S, self._turn)
