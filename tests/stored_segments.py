"""Segment files as a partition writes them: a broker is not needed to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pulsar_ray.data.planning.plan import SegmentSlice
from pulsar_ray.format.block import MARKED, parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.frame import HOLDS_MARKED_BLOCKS, BlockSpan, encode_frame_header
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader

Block = Sequence[Buffer]


def write_segment(
    path: Path,
    frames: Sequence[Sequence[Block]],
    *,
    topic: str = "t",
    partition: int = -1,
    ledger_id: int = 5,
    segment_index: int = 0,
    first_entry_id: int = 0,
) -> SegmentSlice:
    """Write frames of blocks (as `encode_single` and `encode_batch` make them)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = SegmentHeader(ledger_id, segment_index, 1, topic, partition, 1_700_000_000_000)
    entry_id = first_entry_id
    with path.open("wb") as file:
        file.write(header.encode())
        for blocks in frames:
            encoded = [b"".join(block) for block in blocks]
            headers = [parse_block_header(block) for block in encoded]
            spans = [BlockSpan(each.total_length, each.entries, each.message_count) for each in headers]
            flags = HOLDS_MARKED_BLOCKS if any(each.flags & MARKED for each in headers) else 0
            file.write(
                encode_frame_header(ledger_id, 1, entry_id, entry_id - 1, 1_700_000_000_000, spans, flags)
            )
            file.writelines(encoded)
            entry_id += sum(span.entries for span in spans)
        end_offset = file.tell()
    return SegmentSlice(str(path), ledger_id, segment_index, SEGMENT_HEADER_SIZE, end_offset)
