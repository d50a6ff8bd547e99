"""Read a range from the segment files of this node.

Every byte is verified, and every row is within bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pulsar_ray.data.planning.plan import ReadRange, SegmentSlice
from pulsar_ray.data.reading.chunked_messages import ChunkedMessages
from pulsar_ray.data.reading.rows import StoredRows
from pulsar_ray.errors import PulsarException, WrongNode
from pulsar_ray.format.block import CHUNK, BlockHeader, verify_block
from pulsar_ray.format.payload import decode_block
from pulsar_ray.ledger.reader import FrameAt, SegmentReader, frame_blocks
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.position import Position
from pulsar_ray.model.topic_name import TopicName

# Frame headers are looked up so many bytes ahead; frames themselves are read one at a time.
_LOOK_AHEAD_BYTES = 8 << 20


def stored_rows(read_range: ReadRange) -> Iterator[StoredRows]:
    """The rows of a range in the order of the log.

    Raises WrongNode if the data's directory is not on this node, SegmentGone if a file was trimmed,
    CorruptData with file and offset, InvalidMessage for a block its producer made wrongly, each with its
    message id: a range behind it can be read. A message in
    chunks is a row where its last chunk is; the log tells of those that are not whole.
    """
    chunked = ChunkedMessages(read_range)
    for segment in read_range.segments:
        path = Path(segment.path)
        if not path.parent.exists():
            raise WrongNode(
                f"{path.parent} of {read_range.topic} is not on this node; node {read_range.node_id}, "
                "which has it, is gone or starts no actors"
            )
        with SegmentReader(path) as reader:
            for frame in _frames(reader, segment):
                yield from _rows_of_frame(reader, segment, frame, read_range, chunked)
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
) -> Iterator[StoredRows]:
    header = frame.header
    ledger_id, entry_id = header.ledger_id, header.first_entry_id
    first, end = read_range.first, read_range.end
    if (ledger_id, header.last_entry_id) < first or (ledger_id, entry_id) > end:
        return
    data = memoryview(reader.read(frame.offset, header.total_length))
    path = f"{reader.path} (frame at {frame.offset})"
    offset = header.header_length
    for block in frame_blocks(data, header):
        start, stop = _rows_within(Position(ledger_id, entry_id), block, read_range)
        if start < stop:
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
                yield StoredRows(decoded, ledger_id, entry_id, start, stop)
        entry_id += block.entries
        offset += block.total_length


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
