"""Finds the chunks that bulk readers need behind what they have read (ADR 0047)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.log.chunk_reader import ChunkReader
from pulsar_ray.broker.subscription.log.incomplete_messages import AskPartition
from pulsar_ray.broker.subscription.log.log_view import FramePlace, LogView
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_groups import ChunkGroups
from pulsar_ray.dispatch.blocks.chunk_limits import DEFAULT_LIMITS, LOOK_BACK_SEGMENTS
from pulsar_ray.model.message_id import EARLIEST, Position

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
