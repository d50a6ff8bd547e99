"""Blocks that were read from the log, with everything that was read of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_groups import StoredChunk
from pulsar_ray.dispatch.key_shared.sticky_key import Slots
from pulsar_ray.format.delivery_times import DeliveryTimes


class ReadBlocks(NamedTuple):
    """Blocks travel from the log to the dispatcher in columns of equal length.

    A column that the subscription does not need is None, so that a block costs nothing but its reference.
    """

    refs: Sequence[BlockRef]
    slots: Sequence[Slots] | None = None
    """The slots of the blocks' sticky keys, for Key_Shared."""
    delays: Sequence[DeliveryTimes | None] | None = None
    """When the rows of delayed blocks are due, for Shared and Key_Shared."""
    chunks: Mapping[tuple[int, int], StoredChunk] | None = None
    """Which of the blocks are chunks, by ledger and entry id; it is no column."""

    def each(self) -> Iterator[tuple[BlockRef, Slots | None, DeliveryTimes | None]]:
        """Yield each block with its slots and times."""
        slots = repeat(None) if self.slots is None else self.slots
        return zip(self.refs, slots, repeat(None) if self.delays is None else self.delays, strict=False)
