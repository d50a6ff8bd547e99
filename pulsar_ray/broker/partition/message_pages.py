"""Reading single messages of a partition's log back, page by page, past what is damaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pulsar_ray.errors import CorruptData, PulsarException
from pulsar_ray.format.block import RAW, parse_block_header, verify_block
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.reader import FrameAt, SegmentGone, SegmentReader
from pulsar_ray.ledger.recovery import find_frame
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.position_index import IndexPoint
from pulsar_ray.model.message_id import Position

MAX_PAGE_MESSAGES = 500
MAX_PAGE_BYTES = 4 * 1024 * 1024

Record = dict[str, Any]
"""Has `position`, `value`, its `place` in a file, and the `problem` without a value."""


def read_page(
    segments: Sequence[SegmentInfo], points: Sequence[IndexPoint], behind: Position
) -> list[Record]:
    """Read the next records behind a position; [] at the end.

    It touches the disk: run it on a thread. Whatever is damaged, or is no single uncompressed message, has a
    record with its problem.
    """
    page: list[Record] = []
    size = 0
    for record in _records(segments, points, behind):
        page.append(record)
        size += len(record["value"])
        if len(page) >= MAX_PAGE_MESSAGES or size >= MAX_PAGE_BYTES:
            break
    return page


def _records(
    segments: Sequence[SegmentInfo], points: Sequence[IndexPoint], behind: Position
) -> Iterator[Record]:
    for segment in segments:
        last = Position(segment.ledger_id, segment.last_entry_id)
        if last <= behind:
            continue
        try:
            with SegmentReader(segment.path) as reader:
                yield from _of_segment(reader, segment, points, behind)
        except (SegmentGone, CorruptData) as error:
            yield _record(last, problem=str(error))


def _of_segment(
    reader: SegmentReader, segment: SegmentInfo, points: Sequence[IndexPoint], behind: Position
) -> Iterator[Record]:
    least = behind.entry_id + 1 if behind.ledger_id == segment.ledger_id else 0
    offset = SEGMENT_HEADER_SIZE
    for point in points:
        place = (point.ledger_id, point.segment_index)
        if place == (segment.ledger_id, segment.segment_index) and point.entry_id <= least:
            offset = point.offset
    while offset < segment.end_offset:
        try:
            for frame in reader.frames(offset, segment.end_offset):
                offset = frame.offset + frame.header.total_length
                if frame.header.last_entry_id >= least:
                    yield from _of_frame(reader, frame, segment.ledger_id, least)
                    least = frame.header.last_entry_id + 1
        except CorruptData as error:
            sound = find_frame(reader, offset, segment.end_offset, segment.ledger_id, least)
            lost = segment.last_entry_id
            if sound is not None:
                lost = next(reader.frames(sound, segment.end_offset)).header.first_entry_id - 1
            if lost >= least:
                yield _record(Position(segment.ledger_id, lost), problem=str(error))
            if sound is None:
                return
            offset = sound


def _of_frame(reader: SegmentReader, frame: FrameAt, ledger_id: int, least: int) -> Iterator[Record]:
    at, entry_id = frame.offset + frame.header.header_length, frame.header.first_entry_id
    for span in frame.header.blocks:
        last = entry_id + span.entries - 1
        if last >= least:
            yield _of_block(reader, at, span.length, Position(ledger_id, last))
        at += span.length
        entry_id += span.entries


def _of_block(reader: SegmentReader, offset: int, length: int, position: Position) -> Record:
    place = f"{reader.path} at byte {offset}"
    try:
        data = reader.read_block(offset, length)
        header = parse_block_header(data)
        verify_block(data, 0, header)
    except PulsarException as error:
        return _record(position, problem=f"{place}: {error}")
    if header.payload_format != RAW or header.message_count != 1 or header.codec:
        return _record(position, problem=f"{place}: it is no single uncompressed message")
    start = header.header_length
    return _record(position, data[start : start + header.payload_length], place=place)


def _record(position: Position, value: bytes = b"", problem: str = "", place: str = "") -> Record:
    return {"position": list(position), "value": value, "problem": problem, "place": place}
