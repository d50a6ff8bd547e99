"""Reads from segment files what a dispatcher must know of blocks: keys, delivery times, chunks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pulsar_ray.dispatch.blocks.block_ref import BlockRef, block_ref
from pulsar_ray.dispatch.blocks.chunk_groups import StoredChunk
from pulsar_ray.dispatch.blocks.chunk_limits import LOOK_BACK_SEGMENTS
from pulsar_ray.dispatch.key_shared.sticky_key import Slots, SlotsOfBlocks, Slotting, needs_payload
from pulsar_ray.errors import CorruptData, PulsarException
from pulsar_ray.format.arrow_message import MetadataCutOff
from pulsar_ray.format.block import BLOCK_HEADER_SIZE, CHUNK, BlockHeader, parse_block_header
from pulsar_ray.format.compression import UnknownCodec
from pulsar_ray.format.delivery_times import DeliveryTimes, delivery_times
from pulsar_ray.format.frame import FrameHeader
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.offloaded import UNREAD
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.segment_file import segment_name

logger = logging.getLogger(__name__)


class SegmentWindow:
    """Reads bytes of a segment, up to `end_offset` ahead of what is asked for."""

    def __init__(self, reader: SegmentReader, end_offset: int) -> None:
        self._reader = reader
        self._start = 0
        self._bytes = memoryview(b"")
        self._end = end_offset

    @property
    def path(self) -> str:
        """The segment's file, for errors."""
        return str(self._reader.path)

    def read(self, offset: int, length: int, ahead: int = 0) -> memoryview:
        """So many bytes, and if they were not read yet up to `ahead` with them."""
        at = offset - self._start
        if not 0 <= at <= at + length <= len(self._bytes):
            size = max(length, min(ahead, self._end - offset))
            try:
                data = self._reader.read(offset, size)
            except CorruptData:  # of a later block, perhaps
                data = self._reader.read(offset, length)
            self._bytes, self._start, at = memoryview(data), offset, 0
        return self._bytes[at : at + length]


class SegmentEnd(Protocol):
    """A segment file, readable up to an offset."""

    @property
    def ledger_id(self) -> int: ...
    @property
    def segment_index(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def end_offset(self) -> int: ...


class Segment(NamedTuple):
    """One segment file with its durable end."""

    ledger_id: int
    segment_index: int
    path: str
    first_entry_id: int
    end_offset: int
    last_entry_id: int


def blocks_of(ledger_id: int, segment_index: int, offset: int, frame: FrameHeader) -> Sequence[BlockRef]:
    """The blocks of a frame that starts at `offset`."""
    refs: list[BlockRef] = []
    at = offset + frame.header_length
    first, marked, at_ms = frame.first_entry_id, frame.holds_marked_blocks, frame.broker_time_ms
    for length, entries, messages in frame.blocks:
        refs.append(
            block_ref(
                (
                    ledger_id,
                    segment_index,
                    at,
                    length,
                    first,
                    entries,
                    messages,
                    entries > 1,
                    marked,
                    (),
                    at_ms,
                )
            )
        )
        at += length
        first += entries
    return refs


_WINDOW_BYTES = 256 * 1024
_BLOCK_READ_WHOLE_BYTES = 32 * 1024
"""Blocks up to here are read whole, and their neighbours with them."""
_METADATA_BYTES = 1024
"""Bytes of larger blocks that are read behind their header: they describe the payload."""
_BEGINNING_BYTES = 512 + _METADATA_BYTES


def read_slots(directory: str, refs: Sequence[BlockRef], slotting: Slotting) -> list[Slots]:
    """The slots of blocks in the order of the log; for the reader thread.

    A block that cannot be read or decoded counts as keyless, so that one consumer meets the error. Raises
    SegmentGone if a segment is not there.
    """
    found: list[Slots] = []
    for segment, blocks in groupby(refs, key=attrgetter("ledger_id", "segment_index")):
        with SegmentReader(Path(directory) / segment_name(*segment)) as reader:
            found += slots_in(reader, list(blocks), slotting)
    return found


def slots_in(reader: SegmentReader, refs: Sequence[BlockRef], slotting: Slotting) -> list[Slots]:
    """The same of blocks that all are in an open segment."""
    if not refs:
        return []
    blocks = SlotsOfBlocks(slotting)
    window = SegmentWindow(reader, refs[-1].offset + refs[-1].length)
    found: list[Slots] = []
    for ref in refs:
        try:
            if ref.length <= _BLOCK_READ_WHOLE_BYTES:
                blocks.add_block(window.read(ref.offset, ref.length, _WINDOW_BYTES))
            else:
                _add_large(ref, window, blocks)
        except UNREAD:
            raise
        except (PulsarException, UnknownCodec, ValueError) as error:
            logger.warning(
                "the keys of entries %d:%d to %d cannot be read, they count as keyless: %s",
                ref.ledger_id,
                ref.first_entry_id,
                ref.last_entry_id,
                error,
            )
            blocks.add_unreadable()
        if blocks.is_full:
            found += blocks.take()
    return found + blocks.take()


def _add_large(ref: BlockRef, window: SegmentWindow, blocks: SlotsOfBlocks) -> None:
    """Add a block of which no more than the keys is read."""
    data = window.read(ref.offset, _BEGINNING_BYTES)
    needed = int.from_bytes(data[8:12], "little") + _METADATA_BYTES
    if needed > len(data):
        data = window.read(ref.offset, min(needed, ref.length))
    header = parse_block_header(data, 0, window.path)
    if not needs_payload(header):
        blocks.add_header(header)
        return
    arrays = None if header.codec else _keys_in(ref, header, data[header.header_length :], window)
    if arrays is None:
        blocks.add_block(window.read(ref.offset, ref.length))
    else:
        blocks.add_keys(header, arrays)


def _keys_in(
    ref: BlockRef, header: BlockHeader, beginning: memoryview, window: SegmentWindow
) -> Sequence[Any] | None:
    """Read the keys without the values; None if the beginning does not say where."""
    # Arrow is big, and most dispatchers never decode a block.
    from pulsar_ray.format.key_columns import extent, key_places, keys_at  # noqa: PLC0415

    try:
        places = key_places(beginning, header.payload_length, header.columns, header.message_count)
    except MetadataCutOff:
        return None
    start, end = extent(places)
    part = window.read(ref.offset + header.header_length + start, end - start)
    return keys_at(places, part, start)


_HEADER_WINDOW_BLOCK_BYTES = 4096
"""Blocks up to here are read together with what follows them."""
_HEADER_BYTES = BLOCK_HEADER_SIZE + 440


def read_delays(directory: str, refs: Sequence[BlockRef]) -> list[DeliveryTimes | None]:
    """When the rows of each block are due, None for one that is not delayed.

    It is for the reader thread. A header that cannot be read counts as not delayed: a consumer meets the
    error. Raises SegmentGone if a segment is not there.
    """
    found: list[DeliveryTimes | None] = []
    for segment, blocks in groupby(refs, key=attrgetter("ledger_id", "segment_index")):
        with SegmentReader(Path(directory) / segment_name(*segment)) as reader:
            found += delays_in(reader, list(blocks))
    return found


def delays_in(reader: SegmentReader, refs: Sequence[BlockRef]) -> list[DeliveryTimes | None]:
    """The same of blocks that all are in an open segment."""
    if not refs:
        return []
    window = SegmentWindow(reader, refs[-1].offset + refs[-1].length)
    return [_delay_of(window, ref) if ref.is_marked else None for ref in refs]


def _delay_of(window: SegmentWindow, ref: BlockRef) -> DeliveryTimes | None:
    try:
        ahead = _WINDOW_BYTES if ref.length <= _HEADER_WINDOW_BLOCK_BYTES else 0
        data = window.read(ref.offset, min(ref.length, _HEADER_BYTES), ahead)
        needed = min(int.from_bytes(data[8:12], "little"), ref.length)
        if needed > len(data):
            data = window.read(ref.offset, needed)
        return delivery_times(parse_block_header(data, 0, window.path))
    except UNREAD:
        raise
    except (PulsarException, ValueError) as error:
        logger.warning(
            "the header of entries %d:%d to %d cannot be read, they are delivered at once: %s",
            ref.ledger_id,
            ref.first_entry_id,
            ref.last_entry_id,
            error,
        )
        return None


Chunks = Mapping[tuple[int, int], StoredChunk]
"""By ledger and entry id."""


class ChunkReader:
    """Reads for one offer; for the reader thread.

    `segments` are all there are. `begun` names the message of each incarnation whose chunks so far are known:
    of any other one the chunks before the first that is read are searched for.
    """

    def __init__(self, segments: Sequence[SegmentEnd], begun: Mapping[int, str]) -> None:
        self._all = segments
        self._begun = dict(begun)

    def read(self, refs: Sequence[BlockRef]) -> Chunks:
        """The chunks among blocks in the order of the log.

        A block whose header cannot be read counts as a message alone: a consumer meets the error. Raises
        SegmentGone if a segment is not there.
        """
        found: dict[tuple[int, int], StoredChunk] = {}
        marked = [ref for ref in refs if ref.is_marked]
        places = {_key(segment): place for place, segment in enumerate(self._all)} if marked else {}
        for segment, blocks in groupby(marked, key=lambda ref: (ref.ledger_id, ref.segment_index)):
            place = places.get(segment)
            if place is None:
                raise SegmentGone(f"segment {segment[1]} of ledger {segment[0]}")
            with SegmentReader(Path(self._all[place].path)) as reader:
                for ref in blocks:
                    chunk = _chunk_of(reader, ref)
                    if chunk is not None:
                        found[ref.ledger_id, ref.first_entry_id] = self._with_those_before(ref, chunk, place)
        return found

    def _with_those_before(self, ref: BlockRef, chunk: StoredChunk, place: int) -> StoredChunk:
        incarnation, info = chunk.incarnation, chunk.info
        is_begun = info.chunk_id == 0 or self._begun.get(incarnation) == info.uuid
        self._begun[incarnation] = info.uuid
        return chunk if is_begun else chunk._replace(before=self._look_back(ref, chunk, place))

    def _look_back(self, ref: BlockRef, chunk: StoredChunk, place: int) -> tuple[BlockRef, ...]:
        """The chunks before one, if all of them are still there."""
        found: dict[int, BlockRef] = {}
        for segment in reversed(self._all[max(0, place - LOOK_BACK_SEGMENTS) : place + 1]):
            try:
                with SegmentReader(Path(segment.path)) as reader:
                    for other in _marked_before(reader, segment, ref):
                        known = _chunk_of(reader, other)
                        if known is not None and known.is_of_the_message_of(chunk):
                            found[known.info.chunk_id] = other
            except (CorruptData, SegmentGone) as error:
                logger.warning("the chunks before entry %d:%d: %s", ref.ledger_id, ref.first_entry_id, error)
                break
            if 0 in found:
                break
        numbers = range(chunk.info.chunk_id)
        return tuple(found[number] for number in numbers) if all(n in found for n in numbers) else ()


def _key(segment: SegmentEnd) -> tuple[int, int]:
    return segment.ledger_id, segment.segment_index


def _marked_before(reader: SegmentReader, segment: SegmentEnd, end: BlockRef) -> Iterator[BlockRef]:
    """Yield the marked blocks of a segment that stand before another one."""
    for offset, frame in reader.frames(SEGMENT_HEADER_SIZE, segment.end_offset):
        if not frame.holds_marked_blocks:
            continue
        for ref in blocks_of(segment.ledger_id, segment.segment_index, offset, frame):
            if (ref.ledger_id, ref.first_entry_id) >= (end.ledger_id, end.first_entry_id):
                return
            yield ref


def _chunk_of(reader: SegmentReader, ref: BlockRef) -> StoredChunk | None:
    if ref.messages > 1:
        return None
    try:
        header = reader.read_block_header(ref.offset, ref.length)
        info = header.metadata().chunk if header.flags & CHUNK else None
    except UNREAD:
        raise
    except PulsarException as error:
        place = ref.ledger_id, ref.first_entry_id
        logger.warning("the header of entry %d:%d cannot be read: %s", *place, error)
        return None
    return None if info is None else StoredChunk(header.incarnation, header.entry_seq, info)
