"""Chunks of messages that are not complete yet (ADR 0038).

A message in several chunks is *one* to the rest of the dispatcher: the block of its last chunk, which knows
where the others are. It is taken in when that one is read, and waits, is granted, fails and is acknowledged
like a message alone. So nobody ever waits for a chunk that went elsewhere, and no consumer holds a part.
Whether a message is acknowledged is what its last chunk is; the others follow.

Chunks of one producer stand in the log in their order, with other producers' entries between them. One
message of an incarnation is incomplete at a time: the first chunk of the next one shows that the one before
will never be whole. Where the log shows nothing, the partition knows it of the producer (`overdue`, `left`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_limits import DEFAULT_LIMITS
from pulsar_ray.format.metadata import ChunkInfo
from pulsar_ray.model.message_id import LATEST, Position

MAX_REFUSED = 10_000
"""How many dropped messages are remembered.

An older one is found again, should its producer go on with it.
"""


class StoredChunk(NamedTuple):
    """A chunk, by the header of its block."""

    incarnation: int
    entry_seq: int
    info: ChunkInfo
    before: tuple[BlockRef, ...] = ()
    """The chunks before it, where they had to be searched for: reading began behind them."""

    def is_of_the_message_of(self, other: StoredChunk) -> bool:
        """Whether both are chunks of one message."""
        return (self.incarnation, self.info.uuid) == (other.incarnation, other.info.uuid)


class OpenGroup:
    """The chunks so far of one message."""

    __slots__ = ("chunks", "entry_seq", "incarnation", "since_ms", "uuid")

    def __init__(self, chunk: StoredChunk, since_ms: int) -> None:
        self.incarnation = chunk.incarnation
        self.entry_seq = chunk.entry_seq
        """Of the last chunk."""
        self.uuid = chunk.info.uuid
        self.since_ms = since_ms
        """When the first chunk was read."""
        self.chunks: list[BlockRef] = []


class ChunkGroups:
    """Puts chunks together that are read one after the other."""

    def __init__(self) -> None:
        self._open: dict[int, OpenGroup] = {}
        """By incarnation, the longest incomplete first."""
        self._whole: dict[tuple[int, int], tuple[BlockRef, ...]] = {}
        """By the last chunk's place: the other chunks of messages that are not acknowledged."""
        self.done: list[BlockRef] = []
        """Chunks to be acknowledged: their message is, or will never be whole."""
        self._refused: dict[int, str] = {}
        """By incarnation, the message that was dropped while its producer may still be sending it."""
        self.limits = DEFAULT_LIMITS
        self.dropped = 0
        """Messages that were incomplete and are given up."""

    def __bool__(self) -> bool:
        """Whether there is any message in chunks."""
        return bool(self._open or self._whole)

    @property
    def begun(self) -> dict[int, str]:
        """The messages, by incarnation, whose chunks need not be searched for."""
        return {**self._refused, **{group.incarnation: group.uuid for group in self._open.values()}}

    def __len__(self) -> int:
        """How many messages are incomplete."""
        return len(self._open)

    def take(self, ref: BlockRef, chunk: StoredChunk, now_ms: int) -> BlockRef | None:
        """Take in a chunk; returns the whole message's block if it is the last one.

        A chunk whose message has begun where nothing is left is done.
        """
        incarnation, info = chunk.incarnation, chunk.info
        if incarnation in self._refused and self._is_refused(chunk):
            self.done.append(ref)
            return None
        group = self._open.get(incarnation)
        if chunk.before:
            if group is not None:
                self.give_up(group)
            group = self._open[incarnation] = OpenGroup(chunk, now_ms)
            group.chunks += chunk.before
        if info.chunk_id == 0:
            if group is not None:
                self.give_up(group)
            group = None
            if info.num_chunks > 1:
                group = self._open[incarnation] = OpenGroup(chunk, now_ms)
                self._drop_oldest()
        elif group is None:
            self.done.append(ref)
            return None
        elif group.uuid != info.uuid or info.chunk_id != len(group.chunks):
            # No producer of ours leaves a gap or repeats a chunk: the message will never be whole.
            self.give_up(group)
            self.done.append(ref)
            return None
        if group is None:
            return ref
        group.entry_seq = chunk.entry_seq
        if info.chunk_id + 1 < info.num_chunks:
            group.chunks.append(ref)
            return None
        del self._open[incarnation]
        chunks = self._whole[ref.ledger_id, ref.first_entry_id] = tuple(group.chunks)
        return ref._replace(chunks=chunks)

    def whole(self, ref: BlockRef, chunk: StoredChunk | None) -> BlockRef | None:
        """Return the whole message whose last block is handed over out of order.

        `chunk` is what was read of it, if that lies ahead of all that was taken in. None if it is not whole.
        """
        key = ref.ledger_id, ref.first_entry_id
        chunks = self._whole.get(key)
        if chunks is None and chunk is not None and chunk.info.num_chunks > 1:
            if len(chunk.before) + 1 < chunk.info.num_chunks:
                return None
            chunks = self._whole[key] = chunk.before
        return ref if chunks is None else ref._replace(chunks=chunks)

    def give_up(self, group: OpenGroup) -> None:
        """Deliver nothing of an incomplete message."""
        del self._open[group.incarnation]
        self.done += group.chunks
        self.dropped += 1

    def _is_refused(self, chunk: StoredChunk) -> bool:
        info = chunk.info
        is_same = self._refused[chunk.incarnation] == info.uuid
        if not is_same or info.chunk_id + 1 == info.num_chunks:
            del self._refused[chunk.incarnation]
        return is_same

    def _drop_oldest(self) -> None:
        """Give up what is too much, if that is wanted."""
        limits = self.limits
        while limits.acks_oldest and 0 < limits.max_pending < len(self._open):
            group = next(iter(self._open.values()))
            self.give_up(group)
            self._refused[group.incarnation] = group.uuid
            while len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]

    def overdue(self, now_ms: int) -> dict[int, int]:
        """By incarnation, the last entry_seq of each message that is incomplete for too long."""
        expire_ms = self.limits.expire_ms
        if not expire_ms:
            return {}
        groups = self._open.values()
        return {g.incarnation: g.entry_seq for g in groups if now_ms - g.since_ms >= expire_ms}

    def left(self, incarnation: int, entry_seq: int) -> None:
        """Give a message up, of which nothing comes behind that entry.

        Not if more of it was read meanwhile.
        """
        group = self._open.get(incarnation)
        if group is not None and group.entry_seq == entry_seq:
            self.give_up(group)

    def acknowledged(self, key: tuple[int, int]) -> None:
        """The message whose last chunk has this place is acknowledged: the other chunks are done."""
        self.done += self._whole.pop(key, ())

    def acknowledged_within(self, ledger_id: int, first: int, last: int) -> None:
        """Entries are acknowledged, perhaps of messages that wait for their time elsewhere."""
        whole = self._whole
        if last - first < len(whole):
            keys = [(ledger_id, entry) for entry in range(first, last + 1) if (ledger_id, entry) in whole]
        else:
            keys = [key for key in whole if key[0] == ledger_id and first <= key[1] <= last]
        for key in keys:
            self.acknowledged(key)

    def acknowledged_up_to(self, position: Position) -> None:
        """Everything up to there is acknowledged, but for `kept`."""
        for key in [key for key in self._whole if key <= position]:
            self.acknowledged(key)

    def kept(self, position: Position) -> Iterator[Position]:
        """Chunks up to a position that belong to messages behind it, in no order.

        An acknowledgment of everything up to there is none of these messages.
        """
        for group in self._open.values():
            yield from _places(group.chunks, position)
        for key, chunks in self._whole.items():
            if key > position:
                yield from _places(chunks, position)

    def kept_of(self, incarnation: int) -> Iterator[Position]:
        """The chunks of the incarnation's message that is incomplete."""
        group = self._open.get(incarnation)
        if group is not None:
            yield from _places(group.chunks, LATEST)

    def last_seqs(self) -> dict[int, int]:
        """By incarnation, the entry_seq of the last chunk of each message that is incomplete."""
        return {group.incarnation: group.entry_seq for group in self._open.values()}

    def clear(self) -> None:
        """Forget everything: the log is read again from elsewhere."""
        self._open.clear()
        self._whole.clear()
        self._refused.clear()
        self.done.clear()


def _places(chunks: list[BlockRef] | tuple[BlockRef, ...], last: Position) -> Iterator[Position]:
    for ref in chunks:
        place = Position(ref.ledger_id, ref.first_entry_id)
        if place <= last:
            yield place
