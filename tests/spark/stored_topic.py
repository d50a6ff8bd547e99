"""Segment files as a partition writes them, and a planner over them: a broker is not needed to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import ray

from pulsar_ray.format.block import parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.frame import BlockSpan, encode_frame_header
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader
from pulsar_ray.model.position import EARLIEST, LATEST, Position
from pulsar_ray_spark.plan import Bound, RangePlan, ReadRange, SegmentSlice

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
            file.write(encode_frame_header(ledger_id, 1, entry_id, entry_id - 1, 1_700_000_000_000, spans))
            file.writelines(encoded)
            entry_id += sum(span.entries for span in spans)
        end_offset = file.tell()
    return SegmentSlice(str(path), ledger_id, segment_index, SEGMENT_HEADER_SIZE, end_offset)


@dataclass
class StoredTopics:
    """A RangePlanner over segment files of this node."""

    ranges: dict[str, list[ReadRange]] = field(default_factory=dict)
    asked: list[tuple[Sequence[str], Bound, Bound]] = field(default_factory=list)
    leases: int = 0

    def add(
        self,
        topic: str,
        *segments: SegmentSlice,
        partition: int = -1,
        first: Position = EARLIEST,
        end: Position = LATEST,
        first_batch_index: int = 0,
        end_batch_index: int = 0,
    ) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        self.ranges.setdefault(topic, []).append(
            ReadRange(node_id, topic, partition, segments, first, end, first_batch_index, end_batch_index)
        )

    @contextmanager
    def plan(self, topics: Sequence[str], start: Bound, end: Bound) -> Iterator[RangePlan]:
        self.asked.append((topics, start, end))
        self.leases += 1
        try:
            yield RangePlan(tuple(each for topic in topics for each in self.ranges[topic]))
        finally:
            self.leases -= 1
