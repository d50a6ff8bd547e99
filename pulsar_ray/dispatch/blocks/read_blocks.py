"""Blocks that were read from the log, with everything that was read of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.key_shared.sticky_key import Slots


class ReadBlocks(NamedTuple):
    """Blocks travel from the log to the dispatcher in columns of equal length.

    A column that the subscription does not need is None, so that a block costs nothing but its reference.
    """

    refs: Sequence[BlockRef]
    slots: Sequence[Slots] | None = None
    """The slots of the blocks' sticky keys, for Key_Shared."""

    def each(self) -> Iterator[tuple[BlockRef, Slots | None]]:
        """Yield each block with its slots."""
        return zip(self.refs, repeat(None) if self.slots is None else self.slots, strict=False)
