"""Finds messages whose chunks are not all there, and gives some up.

Bulk readers need the chunks behind what they have read (ADR 0047), others wait for them (ADR 0038).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.log.log_view import FramePlace, LogView
from pulsar_ray.broker.subscription.log.segment_blocks import ChunkReader
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_groups import ChunkGroups
from pulsar_ray.dispatch.blocks.chunk_limits import DEFAULT_LIMITS, LOOK_BACK_SEGMENTS
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.errors import PulsarException
from pulsar_ray.lane.waiting import within
from pulsar_ray.model.message_id import EARLIEST, Position

logger = logging.getLogger(__name__)


ANSWER_DEADLINE_S = 10.0

AskPartition = Callable[[Mapping[int, int], int], Awaitable[Mapping[str, Any]]]
"""Asks which producers, by incarnation, store nothing more behind an entry_seq: the call `end_messages`."""


class IncompleteMessages:
    """Acknowledges the chunks of messages that are overdue and will never be whole.

    Only the partition knows that of a producer. Without `ask`, where nothing is acknowledged durably, what is
    overdue is only forgotten: it is found again should the rest come. Runs on the owner loop.
    """

    def __init__(
        self,
        name: str,
        core: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        ask: AskPartition | None,
        *,
        when_dropped: Callable[[], None],
    ) -> None:
        self._name = name
        self._core = core
        self._loop = loop
        self._ask = ask
        self._when_dropped = when_dropped
        self._is_asking = False

    @property
    def are_awaited(self) -> bool:
        """Whether one will be overdue: this dispatcher has to stay until then."""
        chunks = self._core.blocks.chunks
        return len(chunks) > 0 and chunks.limits.expire_ms > 0

    def tick(self, now_ms: int) -> None:
        """Look for overdue messages; once a second."""
        overdue = self._core.blocks.chunks.overdue(now_ms)
        if not overdue:
            return
        if self._ask is None:
            self._drop(overdue)
        elif not self._is_asking:
            self._is_asking = True
            task = self._loop.create_task(self._settle(overdue, self._ask))
            task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._is_asking = False
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, PulsarException | asyncio.TimeoutError):
                raise error
            logger.info("subscription %s: its partition does not answer: %s", self._name, error)

    async def _settle(self, overdue: Mapping[int, int], ask: AskPartition) -> None:
        core = self._core
        reading_number = core.reading_number
        answer = await within(ask(overdue, core.blocks.chunks.limits.expire_ms), ANSWER_DEADLINE_S)
        # All that they have stored must have been read: the rest of a message may be among it.
        if core.reading_number == reading_number and core.intake.read_position > Position(*answer["last"]):
            self._drop({incarnation: overdue[incarnation] for incarnation in answer["left"]})

    def _drop(self, groups: Mapping[int, int]) -> None:
        core = self._core
        chunks = core.blocks.chunks
        before = chunks.dropped
        for incarnation, entry_seq in groups.items():
            chunks.left(incarnation, entry_seq)
        core.acknowledgments.acknowledge_chunks()
        if chunks.dropped > before:
            logger.warning(
                "subscription %s gave up %d messages in chunks: their producers left before they were whole",
                self._name,
                chunks.dropped - before,
            )
            self._when_dropped()


_READ_MESSAGES = 10_000


class OpenMessages:
    """Finds messages that begin up to a position, and whose last chunk stands behind it.

    Of the log's blocks it looks at those since the last time, and reads headers of marked ones alone. A
    message that stays open for as long as consumers wait for one is open no more if its producer has left,
    and the log has no more of it. Runs on the owner loop.
    """

    def __init__(self, log: LogView, reader: DiskThread, ask: AskPartition) -> None:
        self._log = log
        self._reader = reader
        self._ask = ask
        self._place: FramePlace | None = None
        self._since_ms: dict[tuple[int, str], int] = {}
        """When each open message, by incarnation and uuid, was met first."""
        self._next_settling_ms = 0

    async def chunks_up_to(self, behind: Position, last: Position, now_ms: int) -> list[Position]:
        """The places of the open messages' chunks behind one position, up to another, in order.

        Raises SegmentGone for a file that is trimmed meanwhile.
        """
        groups = ChunkGroups()
        self._place = await self._read(groups, max(behind, self._farthest(last)), last, self._place)
        begun = groups.begun.items()
        self._since_ms = {key: self._since_ms.get(key, now_ms) for key in begun}
        kept = {key[0]: sorted(groups.kept_of(key[0])) for key in begun}
        overdue_ms = now_ms - DEFAULT_LIMITS.expire_ms
        overdue = {of for (of, _), since_ms in self._since_ms.items() if since_ms <= overdue_ms}
        if overdue and now_ms >= self._next_settling_ms:
            self._next_settling_ms = now_ms + DEFAULT_LIMITS.expire_ms
            for incarnation in await self._settled(groups, overdue, last):
                del kept[incarnation]
        return sorted(place for places in kept.values() for place in places if behind < place <= last)

    def _farthest(self, last: Position) -> Position:
        """How far back a message may begin."""
        segments = self._log.segments
        index = max(min(self._log.segment_at(last), len(segments)) - LOOK_BACK_SEGMENTS, 0)
        if not segments:
            return EARLIEST
        return Position(segments[index].ledger_id, segments[index].first_entry_id - 1)

    async def _settled(self, groups: ChunkGroups, overdue: set[int], last: Position) -> set[int]:
        """Those messages, by incarnation, that will never be whole."""
        sent = {of: seq for of, seq in groups.last_seqs().items() if of in overdue}
        answer = await self._ask(sent, DEFAULT_LIMITS.expire_ms)
        left = set(answer["left"])
        if left:
            # Behind the position there may be the rest, stored before the producer left.
            await self._read(groups, last, Position(*answer["last"]), self._place)
        still = groups.last_seqs()
        return {of for of in left if still.get(of) == sent[of]}

    async def _read(
        self, groups: ChunkGroups, behind: Position, last: Position, place: FramePlace | None
    ) -> FramePlace | None:
        """Take the chunks up to a position; returns where reading goes on."""
        position = max(behind.next(), Position(0, 0))
        while position <= last:
            refs: Sequence[BlockRef] | None = self._log.blocks_from(position, _READ_MESSAGES)
            if refs is None:
                read = self._log.reader_from(position, place, _READ_MESSAGES)
                if read is None:
                    break
                refs, place = (await self._reader.run(read.run)).refs, read.place
            if not refs:
                break
            marked = [ref for ref in refs if ref.is_marked and _position(ref) <= last]
            if marked:
                reader = ChunkReader(self._log.segments, groups.begun)
                chunks = await self._reader.run(partial(reader.read, marked))
                for ref in marked:
                    if (chunk := chunks.get(_position(ref))) is not None:
                        groups.take(ref, chunk, 0)
            position = Position(refs[-1].ledger_id, refs[-1].last_entry_id).next()
        return place


def _position(ref: BlockRef) -> Position:
    return Position(ref.ledger_id, ref.first_entry_id)
