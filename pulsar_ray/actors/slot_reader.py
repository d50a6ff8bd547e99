"""Reads from segment files what Key_Shared must know of blocks: the slots of their keys."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pulsar_ray.dispatch.block_ref import BlockRef
from pulsar_ray.dispatch.block_slots import SlotsOfBlocks, needs_payload, slot_of_unreadable, slots_of_header
from pulsar_ray.dispatch.sticky_key import Slots, Slotting
from pulsar_ray.errors import CorruptData, PulsarException
from pulsar_ray.format.block import parse_block_header
from pulsar_ray.format.compression import UnknownCodec
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.segment_file import segment_name

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 256 * 1024
_HEADER_BYTES = 1024
"""Read of a block whose header alone is wanted; longer headers are read again."""


def read_slots(directory: str, refs: Sequence[BlockRef], slotting: Slotting) -> list[Slots]:
    """The slots of blocks in the order of the log; for the reader thread.

    A block that cannot be read or decoded counts as keyless, so that one consumer meets the error. Raises
    SegmentGone if a segment is not there.
    """
    found: list[Slots] = []
    for segment, blocks in groupby(refs, key=lambda ref: (ref.ledger_id, ref.segment_index)):
        with SegmentReader(Path(directory) / segment_name(*segment)) as reader:
            found += slots_in(reader, list(blocks), slotting)
    return found


def slots_in(reader: SegmentReader, refs: Sequence[BlockRef], slotting: Slotting) -> list[Slots]:
    """The same of blocks that all are in an open segment."""
    if not refs:
        return []
    window = _Window(reader, refs[-1].offset + refs[-1].length)
    blocks = SlotsOfBlocks(slotting)
    found: list[Slots] = []
    for ref in refs:
        window.look_at(ref, slotting, blocks)
        if blocks.is_full:
            found += blocks.take()
    return found + blocks.take()


class _Window:
    """The part of a segment that was read last: neighbouring small blocks cost one read together."""

    def __init__(self, reader: SegmentReader, end_offset: int) -> None:
        self._reader = reader
        self._start = 0
        self._bytes = memoryview(b"")
        self._end = end_offset

    def look_at(self, ref: BlockRef, slotting: Slotting, blocks: SlotsOfBlocks) -> None:
        """Add a block to those whose slots are to be found."""
        try:
            self._look_at(ref, slotting, blocks)
        except (PulsarException, UnknownCodec, ValueError) as error:
            logger.warning(
                "the keys of entries %d:%d to %d cannot be read, they count as keyless: %s",
                ref.ledger_id,
                ref.first_entry_id,
                ref.last_entry_id,
                error,
            )
            blocks.add_slot(slot_of_unreadable(slotting))

    def _look_at(self, ref: BlockRef, slotting: Slotting, blocks: SlotsOfBlocks) -> None:
        data = self._read(ref, ref.length if ref.entries > 1 else min(ref.length, _HEADER_BYTES))
        header_length = int.from_bytes(data[8:12], "little")
        if len(data) < min(header_length, ref.length):
            data = self._read(ref, min(header_length, ref.length))
        header = parse_block_header(data, 0, str(self._reader.path))
        if not needs_payload(header):
            blocks.add_slot(slots_of_header(header, slotting))
            return
        if len(data) < ref.length:
            data = self._read(ref, ref.length)
        end = header.header_length + header.payload_length
        blocks.add_rows(header, data[header.header_length : end])

    def _read(self, ref: BlockRef, length: int) -> memoryview:
        at = ref.offset - self._start
        if not 0 <= at <= at + length <= len(self._bytes):
            size = max(length, min(_WINDOW_BYTES, self._end - ref.offset))
            try:
                data = self._reader.read(ref.offset, size)
            except CorruptData:  # of a later block, perhaps
                data = self._reader.read(ref.offset, length)
            self._bytes, self._start, at = memoryview(data), ref.offset, 0
        return self._bytes[at : at + length]
