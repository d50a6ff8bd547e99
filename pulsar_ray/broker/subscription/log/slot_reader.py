"""Reads from segment files what Key_Shared must know of blocks: the slots of their keys."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pulsar_ray.broker.subscription.log.segment_window import SegmentWindow
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.key_shared.block_slots import SlotsOfBlocks, needs_payload
from pulsar_ray.dispatch.key_shared.sticky_key import Slots, Slotting
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.arrow_message import MetadataCutOff
from pulsar_ray.format.block import BlockHeader, parse_block_header
from pulsar_ray.format.compression import UnknownCodec
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.segment_file import segment_name

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 256 * 1024
_SMALL_BLOCK_BYTES = 32 * 1024
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
    for segment, blocks in groupby(refs, key=lambda ref: (ref.ledger_id, ref.segment_index)):
        with SegmentReader(Path(directory) / segment_name(*segment)) as reader:
            found += slots_in(reader, list(blocks), slotting)
    return found


def slots_in(reader: SegmentReader, refs: Sequence[BlockRef], slotting: Slotting) -> list[Slots]:
    """The same of blocks that all are in an open segment."""
    if not refs:
        return []
    blocks = SlotsOfBlocks(slotting)
    window = _Window(reader, refs[-1].offset + refs[-1].length, blocks)
    found: list[Slots] = []
    for ref in refs:
        window.look_at(ref)
        if blocks.is_full:
            found += blocks.take()
    return found + blocks.take()


class _Window:
    """Looks at blocks one after the other; the slots found go to `blocks`."""

    def __init__(self, reader: SegmentReader, end_offset: int, blocks: SlotsOfBlocks) -> None:
        self._file = SegmentWindow(reader, end_offset)
        self._blocks = blocks

    def look_at(self, ref: BlockRef) -> None:
        """Add a block to those whose slots are to be found."""
        try:
            self._look_at(ref)
        except (PulsarException, UnknownCodec, ValueError) as error:
            logger.warning(
                "the keys of entries %d:%d to %d cannot be read, they count as keyless: %s",
                ref.ledger_id,
                ref.first_entry_id,
                ref.last_entry_id,
                error,
            )
            self._blocks.add_unreadable()

    def _look_at(self, ref: BlockRef) -> None:
        if ref.length <= _SMALL_BLOCK_BYTES:
            self._blocks.add_block(self._file.read(ref.offset, ref.length, _WINDOW_BYTES))
            return
        data = self._beginning(ref)
        header = parse_block_header(data, 0, self._file.path)
        if not needs_payload(header):
            self._blocks.add_header(header)
        elif header.codec or not self._add_keys(ref, header, data[header.header_length :]):
            self._blocks.add_block(self._file.read(ref.offset, ref.length))

    def _beginning(self, ref: BlockRef) -> memoryview:
        data = self._file.read(ref.offset, _BEGINNING_BYTES)
        needed = int.from_bytes(data[8:12], "little") + _METADATA_BYTES
        return data if needed <= len(data) else self._file.read(ref.offset, min(needed, ref.length))

    def _add_keys(self, ref: BlockRef, header: BlockHeader, beginning: memoryview) -> bool:
        """Add them without reading the values, unless the beginning does not say where they are."""
        # Arrow is big, and most dispatchers never decode a block.
        from pulsar_ray.format.key_columns import extent, key_places, keys_at  # noqa: PLC0415

        try:
            places = key_places(beginning, header.payload_length, header.columns, header.message_count)
        except MetadataCutOff:
            return False
        start, end = extent(places)
        part = self._file.read(ref.offset + header.header_length + start, end - start)
        self._blocks.add_keys(header, keys_at(places, part, start))
        return True
