"""Find which messages make the table of a topic's keys.

All keys are read for that, of what was compacted and of the log behind it, as a compaction reads them; the
ranges are read as others are.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.data.planning.broker_planner import SLICE_BYTES
from pulsar_ray.data.planning.plan import Bound, ReadRange, SegmentSlice, TableSource
from pulsar_ray.dispatch.blocks.chunk_limits import LOOK_BACK_SEGMENTS
from pulsar_ray.errors import InvalidConfiguration, PulsarException, WrongNode
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.managed_ledger.compaction.latest_messages import LatestMessages, Rows
from pulsar_ray.managed_ledger.compaction.stored_blocks import SourceSegment, StoredBlock
from pulsar_ray.model.message_id import EARLIEST, LATEST

_GAP_BYTES = 1 << 20
"""A slice goes over so many bytes of frames without such messages at most.

Nothing is read of those but headers.
"""


def check_whole_log(start: Bound, end: Bound) -> None:
    """Raise InvalidConfiguration for a part of a log, which makes no table."""
    if start != "earliest" or end != "latest":
        raise InvalidConfiguration(
            "read_compacted=True reads the latest message of each key, of all that is stored: give no start "
            "and no end, or leave read_compacted out"
        )


def table_ranges(sources: Sequence[TableSource]) -> list[ReadRange]:
    """Find the ranges of several partitions, each on the node that has its files.

    Raises CorruptData, SegmentGone, WrongNode.
    """
    found = []
    for source in sources:
        placement = NodeAffinitySchedulingStrategy(source.node_id, soft=True)
        options = _FIND_RANGES.options(
            num_cpus=0, scheduling_strategy=placement, name="pulsar_ray.data.find_keys"
        )
        found.append(options.remote(source))
    try:
        return [each for ranges in ray.get(found) for each in ranges]
    except RayTaskError as error:
        if isinstance(error.cause, PulsarException):
            raise error.cause from None
        raise


def ranges_of_table(source: TableSource, slice_bytes: int = SLICE_BYTES) -> list[ReadRange]:
    """Find the ranges that have the latest message of each key of a partition.

    They are in the order of the log.
    """
    for segment in source.segments[:1]:
        if not Path(segment.path).parent.exists():
            raise WrongNode(
                f"{Path(segment.path).parent} of {source.topic} is not on this node; node {source.node_id}, "
                "which has it, is gone or starts no actors"
            )
    latest = LatestMessages(
        source.segments,
        source.behind,
        source.horizon,
        retains_null_key=source.retains_null_key,
        max_key_bytes=source.max_key_bytes,
        directory=Path(tempfile.gettempdir()),
    )
    with closing(latest):
        latest.find()
        return list(_ranges(source, latest, slice_bytes))


# Made once: Ray keeps each of its functions for as long as the job lasts.
_FIND_RANGES: Any = ray.remote(ranges_of_table)


def _ranges(source: TableSource, latest: LatestMessages, slice_bytes: int) -> Iterator[ReadRange]:
    made = _RangeToBe(source)
    for blocks in latest.kept():
        for block, rows in blocks:
            if made.bytes >= slice_bytes and not made.is_in_frame_of(block):
                yield made.range()
                made = _RangeToBe(source)
            made.add(block, rows)
    if made.bytes:
        yield made.range()


class _RangeToBe:
    """Gathers slices of whole frames, and which of their rows are wanted."""

    def __init__(self, source: TableSource) -> None:
        self.bytes = 0
        self._source = source
        self._slices: list[SegmentSlice] = []
        self._wanted: list[Rows] = []
        self._rows = 0
        """How many rows the slices before the last one have."""
        self._segment: SourceSegment | None = None
        self._offset = self._end = self._number = self._end_number = 0
        self._frame_offset = -1

    def is_in_frame_of(self, block: StoredBlock) -> bool:
        """Whether the last frame is this block's."""
        return self._segment == block.segment and self._frame_offset == block.frame_offset

    def add(self, block: StoredBlock, rows: Rows) -> None:
        """Take a block's rows."""
        if not self.is_in_frame_of(block):
            self._come_to(block)
        self._wanted.append(rows + (self._rows + block.number - self._number))

    def _come_to(self, block: StoredBlock) -> None:
        length = block.frame.total_length
        if self._segment != block.segment or block.frame_offset - self._end > _GAP_BYTES:
            self._end_slice()
            self._segment = block.segment
            self._offset, self._number = block.frame_offset, block.frame_number
        self._frame_offset = block.frame_offset
        self._end = block.frame_offset + length
        self._end_number = block.frame_number + sum(span.messages for span in block.frame.blocks)
        self.bytes += length

    def _end_slice(self) -> None:
        if (segment := self._segment) is None:
            return
        self._slices.append(
            SegmentSlice(segment.path, segment.ledger_id, segment.segment_index, self._offset, self._end)
        )
        self._rows += self._end_number - self._number

    def range(self) -> ReadRange:
        """The range of all that was taken."""
        self._end_slice()
        is_wanted = np.zeros(self._rows, np.bool_)
        is_wanted[np.concatenate(self._wanted)] = True
        return ReadRange(
            self._source.node_id,
            self._source.topic,
            self._source.partition,
            tuple(self._slices),
            EARLIEST,
            LATEST,
            before=self._before(self._slices[0]),
            wanted=zlib.compress(np.packbits(is_wanted).tobytes(), 1),
        )

    def _before(self, first: SegmentSlice) -> tuple[SegmentSlice, ...]:
        """The segments before, where a message may begin that ends here."""
        whole = [
            SegmentSlice(each.path, each.ledger_id, each.segment_index, SEGMENT_HEADER_SIZE, each.end_offset)
            for each in self._source.segments
        ]
        place = [each.key for each in whole].index(first.key)
        return tuple(whole[max(place - LOOK_BACK_SEGMENTS, 0) : place])
