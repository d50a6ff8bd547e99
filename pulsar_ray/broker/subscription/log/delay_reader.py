"""Reads out of blocks' headers in segment files when their rows are due."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pulsar_ray.broker.subscription.log.segment_window import SegmentWindow
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.block import BLOCK_HEADER_SIZE, parse_block_header
from pulsar_ray.format.delivery_times import DeliveryTimes, delivery_times
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.segment_file import segment_name

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 256 * 1024
_SMALL_BLOCK_BYTES = 4096
"""Blocks up to here are read together with what follows them."""
_HEADER_BYTES = BLOCK_HEADER_SIZE + 440


def read_delays(directory: str, refs: Sequence[BlockRef]) -> list[DeliveryTimes | None]:
    """When the rows of each block are due, None for one that is not delayed.

    It is for the reader thread. A header that cannot be read counts as not delayed: a consumer meets the
    error. Raises SegmentGone if a segment is not there.
    """
    found: list[DeliveryTimes | None] = []
    for segment, blocks in groupby(refs, key=lambda ref: (ref.ledger_id, ref.segment_index)):
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
        ahead = _WINDOW_BYTES if ref.length <= _SMALL_BLOCK_BYTES else 0
        data = window.read(ref.offset, min(ref.length, _HEADER_BYTES), ahead)
        needed = min(int.from_bytes(data[8:12], "little"), ref.length)
        if needed > len(data):
            data = window.read(ref.offset, needed)
        return delivery_times(parse_block_header(data, 0, window.path))
    except (PulsarException, ValueError) as error:
        logger.warning(
            "the header of entries %d:%d to %d cannot be read, they are delivered at once: %s",
            ref.ledger_id,
            ref.first_entry_id,
            ref.last_entry_id,
            error,
        )
        return None
