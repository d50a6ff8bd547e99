"""Read a range from the segment files of this node.

Every byte is verified, and every row is within bounds.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pulsar_ray.broker.subscription.log.segment_blocks import ChunkReader
from pulsar_ray.data.planning.plan import ReadRange, SegmentSlice
from pulsar_ray.data.reading.rows import StoredRows
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_groups import ChunkGroups, StoredChunk
from pulsar_ray.errors import InvalidMessage, PulsarException, WrongNode
from pulsar_ray.format.block import CHUNK, BlockHeader, verify_block
from pulsar_ray.format.chunked_payload import ChunkedPayload
from pulsar_ray.format.frame import FrameHeader
from pulsar_ray.format.payload import DecodedBlock, decode_block
from pulsar_ray.ledger.reader import FrameAt, SegmentReader, frame_blocks
from pulsar_ray.model.message_id import MessageId, Position
from pulsar_ray.model.topic_name import TopicName

# Frame headers are looked up so many bytes ahead; frames themselves are read one at a time.
_LOOK_AHEAD_BYTES = 8 << 20
_log = logging.getLogger(__name__)


def stored_rows(read_range: ReadRange) -> Iterator[StoredRows]:
    """The rows of a range in the order of the log.

    Raises WrongNode if the data's directory is not on this node, SegmentGone if a file was trimmed,
    CorruptData with file and offset, InvalidMessage for a block its producer made wrongly, each with its
    message id: a range behind it can be read. A message in
    chunks is a row where its last chunk is; the log tells of those that are not whole.
    """
    chunked = ChunkedMessages(read_range)
    wanted = _Wanted(read_range.wanted) if read_range.wanted else None
    for segment in read_range.segments:
        path = Path(segment.path)
        if not path.parent.exists():
            raise WrongNode(
                f"{path.parent} of {read_range.topic} is not on this node; node {read_range.node_id}, "
                "which has it, is gone or starts no actors"
            )
        with SegmentReader(path) as reader:
            for frame in _frames(reader, segment):
                yield from _rows_of_frame(reader, segment, frame, read_range, chunked, wanted)
    chunked.report()


def _frames(reader: SegmentReader, segment: SegmentSlice) -> Iterator[FrameAt]:
    offset = segment.offset
    while offset < segment.end_offset:
        frames = reader.read_frames(offset, segment.end_offset, _LOOK_AHEAD_BYTES)
        yield from frames
        last = frames[-1]
        offset = last.offset + last.header.total_length


def _rows_of_frame(
    reader: SegmentReader,
    segment: SegmentSlice,
    frame: FrameAt,
    read_range: ReadRange,
    chunked: ChunkedMessages,
    wanted: _Wanted | None,
) -> Iterator[StoredRows]:
    header = frame.header
    if wanted is not None and not wanted.begin(header):
        return
    ledger_id, entry_id = header.ledger_id, header.first_entry_id
    first, end = read_range.first, read_range.end
    if (ledger_id, header.last_entry_id) < first or (ledger_id, entry_id) > end:
        return
    data = memoryview(reader.read(frame.offset, header.total_length))
    path = f"{reader.path} (frame at {frame.offset})"
    offset = header.header_length
    for block in frame_blocks(data, header):
        start, stop = _rows_within(Position(ledger_id, entry_id), block, read_range)
        places = None if wanted is None else wanted.places(block.message_count)
        if start < stop and (places is None or len(places)):
            try:
                if block.flags & CHUNK:
                    # Verified before anything is concluded from it: damage is an error, and no missing chunk.
                    verify_block(data, offset, block, path)
                    place = Position(ledger_id, entry_id)
                    decoded = chunked.take(segment, frame.offset + offset, place, block)
                else:
                    decoded = decode_block(data, offset, path)
            except PulsarException as error:
                topic = read_range.topic
                partition = TopicName.parse(topic).partition_index
                raise error.of_message(MessageId(partition, ledger_id, entry_id, topic_name=topic)) from None
            if decoded is not None:
                some = None if places is None or len(places) == block.message_count else places
                yield StoredRows(decoded, ledger_id, entry_id, start, stop, some)
        entry_id += block.entries
        offset += block.total_length


class _Wanted:
    """Which rows are read, of a range that does not want all; asked in order."""

    def __init__(self, packed: bytes) -> None:
        self._is_wanted = np.unpackbits(np.frombuffer(zlib.decompress(packed), np.uint8))
        self._frame = 0
        self._block = 0

    def begin(self, frame: FrameHeader) -> bool:
        """Come to the next frame; returns whether any of its rows is wanted."""
        self._block = self._frame
        self._frame += sum(span.messages for span in frame.blocks)
        return bool(self._is_wanted[self._block : self._frame].any())

    def places(self, count: int) -> npt.NDArray[np.int64]:
        """Those of the frame's next block, which has so many rows."""
        found: npt.NDArray[np.int64] = np.flatnonzero(self._is_wanted[self._block : self._block + count])
        self._block += count
        return found


def _rows_within(position: Position, block: BlockHeader, read_range: ReadRange) -> tuple[int, int]:
    """The rows (from, to) of the block at `position` within the range.

    There are none if from is not before to.
    """
    first, end = read_range.first, read_range.end
    if block.row_is_entry:
        # Entries of their own have no batch index: a bound's says nothing about them.
        return (
            _entries_before(first, position, block.entries),
            _entries_before(end, position, block.entries),
        )
    return (
        _rows_before(first, read_range.first_batch_index, position, block.message_count),
        _rows_before(end, read_range.end_batch_index, position, block.message_count),
    )


def _rows_before(bound: Position, batch_index: int, position: Position, count: int) -> int:
    if bound == position:
        return min(max(batch_index, 0), count)
    return count if position < bound else 0


def _entries_before(bound: Position, position: Position, count: int) -> int:
    if bound.ledger_id == position.ledger_id:
        return min(max(bound.entry_id - position.entry_id, 0), count)
    return count if position < bound else 0


class ChunkedMessages:
    """Takes a range's chunks in order, and gives a message with its last one.

    Remembers places of chunks, and has the bytes of one message at a time. Chunks that are not in the range
    are searched for in the segments before, if the last one is in the range.
    """

    def __init__(self, read_range: ReadRange) -> None:
        self._topic = read_range.topic
        self._segments = _joined((*read_range.before, *read_range.segments))
        self._groups = ChunkGroups()
        self._incomplete: list[Position] = []

    def take(
        self, segment: SegmentSlice, offset: int, place: Position, header: BlockHeader
    ) -> DecodedBlock | None:
        """The whole message, if this chunk is the last of one; else None.

        Raises CorruptData, SegmentGone, InvalidMessage, CryptoError.
        """
        info = header.metadata().chunk
        if info is None:
            raise InvalidMessage(
                f"block {header.entry_seq} of incarnation {header.incarnation:#x}: a chunk of no message"
            )
        ref = BlockRef(*segment.key, offset, header.total_length, place.entry_id, 1, 1, False, True)
        chunk = StoredChunk(header.incarnation, header.entry_seq, info)
        is_last = info.chunk_id + 1 == info.num_chunks
        if is_last and info.chunk_id and self._groups.begun.get(header.incarnation) != info.uuid:
            (chunk,) = ChunkReader(list(self._segments.values()), {}).read([ref]).values()
        whole = self._groups.take(ref, chunk, 0)
        if whole is None:
            if is_last:
                self._incomplete.append(place)
            return None
        self._groups.acknowledged((ref.ledger_id, ref.first_entry_id))
        self._groups.done.clear()
        return self._read((*whole.chunks, whole))

    def report(self) -> None:
        """Log how many messages were left out for want of chunks."""
        if self._incomplete:
            first = self._incomplete[0]
            _log.warning(
                "%d messages in chunks of %s are left out, the first at %d:%d: other chunks of them are "
                "trimmed, or were never stored",
                len(self._incomplete),
                self._topic,
                *first,
            )

    def _read(self, chunks: Sequence[BlockRef]) -> DecodedBlock:
        payload = ChunkedPayload(sum(ref.length for ref in chunks))
        for key, refs in groupby(chunks, _segment_of):
            path = self._segments[key].path
            with SegmentReader(Path(path)) as reader:
                for ref in refs:
                    payload.add(reader.read_block(ref.offset, ref.length), f"{path} (block at {ref.offset})")
        return payload.decoded()


def _joined(slices: Sequence[SegmentSlice]) -> dict[tuple[int, int], SegmentSlice]:
    """The segments of slices, each up to the end of its last slice."""
    return {each.key: each for each in slices}


def _segment_of(ref: BlockRef) -> tuple[int, int]:
    return ref.ledger_id, ref.segment_index
