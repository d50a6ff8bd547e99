"""Puts placeholders where entries are lost, so that those behind keep their positions.

A placeholder is a middle chunk of a message that was never begun: dispatchers acknowledge it, and nothing
ever delivers it (ADR 0038). So a subscription goes on over the gap, its log is trimmed, and no reader has to
know of gaps.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.block import encode_block
from pulsar_ray.format.frame import HOLDS_MARKED_BLOCKS, BlockSpan, FrameHeader, encode_frame_header
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader
from pulsar_ray.ledger.disk import create_closed
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.recovery import SegmentScan
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.maintenance.segment_check import damage_of_block
from pulsar_ray.managed_ledger.log.manifest.manifest_records import TopicIdentity

PRODUCER = "pulsar-ray-repair"
"""The name that placeholders give for their producer."""
_BLOCKS_IN_FRAME = 4096


class _Times(NamedTuple):
    """The epoch and time of the frames around a gap."""

    epoch: int
    broker_time_ms: int


class _Placeholders:
    """Makes the blocks of one segment's placeholders."""

    def __init__(self) -> None:
        identity = uuid.uuid4()
        self._incarnation = identity.int >> 64
        self._message = str(identity)
        self._made = 0

    def block(self, publish_time_ms: int) -> tuple[bytes, BlockSpan]:
        """One block, which stands for one entry."""
        buffers = encode_block(
            b"",
            incarnation=self._incarnation,
            entry_seq=self._made,
            first_sequence_id=0,
            last_sequence_id=0,
            publish_time_ms=publish_time_ms,
            metadata=BlockMetadata(producer_name=PRODUCER, chunk=ChunkInfo(self._message, 1, 3, 0)),
        )
        self._made += 1
        content = b"".join(buffers)
        return content, BlockSpan(len(content), 1, 1)

    def frames(self, ledger_id: int, first: int, last: int, times: _Times) -> Iterator[bytes]:
        """Yield frames for entries first..last."""
        for start in range(first, last + 1, _BLOCKS_IN_FRAME):
            count = min(_BLOCKS_IN_FRAME, last + 1 - start)
            blocks = [self.block(times.broker_time_ms) for _ in range(count)]
            spans = [span for _, span in blocks]
            yield encode_frame_header(
                ledger_id, times.epoch, start, start - 1, times.broker_time_ms, spans, HOLDS_MARKED_BLOCKS
            )
            yield from (content for content, _ in blocks)


def write_without_damage(segment: SegmentInfo, identity: TopicIdentity, last: int, target: Path) -> int:
    """Write a segment to a new file, with placeholders for its lost entries.

    It ends with the entry `last`, and is durable when this returns. Returns its length. The segment's own
    file may be missing.
    """
    length = 0
    with create_closed(target) as file:
        for part in _parts(segment, identity, last):
            length += file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return length


def _parts(segment: SegmentInfo, identity: TopicIdentity, last: int) -> Iterator[bytes]:
    ledger_id, first = segment.ledger_id, segment.first_entry_id
    times = _Times(0, 0)
    yield _header(segment, identity)
    placeholders = _Placeholders()
    if segment.path.exists():
        # Without the segment's recorded end: a cut that was broken off has moved it.
        scan = SegmentScan(segment.path, ledger_id, SEGMENT_HEADER_SIZE, first, last)
        with SegmentReader(segment.path) as reader:
            for frame in scan.frames():
                header = frame.header
                if header.first_entry_id > last:
                    break
                times = _Times(header.epoch, header.broker_time_ms)
                yield from placeholders.frames(ledger_id, first, header.first_entry_id - 1, times)
                if frame.blocks:
                    yield reader.read(frame.offset, header.total_length)
                else:
                    yield from _sound_blocks(reader, frame.offset, header, placeholders)
                first = header.last_entry_id + 1
    yield from placeholders.frames(ledger_id, first, last, times)


def _header(segment: SegmentInfo, identity: TopicIdentity) -> bytes:
    """The segment's own header, or a new one."""
    try:
        if segment.path.exists():
            with SegmentReader(segment.path) as reader:
                return reader.header().encode()
    except CorruptData:
        pass
    return SegmentHeader(
        segment.ledger_id, segment.segment_index, 0, identity.topic, identity.partition, 1
    ).encode()


def _sound_blocks(
    reader: SegmentReader, offset: int, header: FrameHeader, placeholders: _Placeholders
) -> Iterator[bytes]:
    """Yield a frame whose bad blocks are replaced."""
    blocks: list[tuple[bytes, BlockSpan]] = []
    at = offset + header.header_length
    for span in header.blocks:
        if damage_of_block(reader, at, span):
            blocks += [placeholders.block(header.broker_time_ms) for _ in range(span.entries)]
        else:
            blocks.append((reader.read_block(at, span.length), span))
        at += span.length
    yield encode_frame_header(
        header.ledger_id,
        header.epoch,
        header.first_entry_id,
        header.durable_entry_id,
        header.broker_time_ms,
        [span for _, span in blocks],
        header.flags | HOLDS_MARKED_BLOCKS,
    )
    yield from (content for content, _ in blocks)
