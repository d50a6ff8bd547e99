"""The actions that a dispatcher has its owner carry out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.row_ranges import RowFailures, RowRanges
from pulsar_ray.model.row_sets import RowSet, ranges_of


class Grant(NamedTuple):
    """Action: send these rows of a block to a consumer, as its delivery number `number`.

    Numbers of a consumer are consecutive, except in what is sent again after a re-attachment, where
    deliveries that need not be sent any more are left out. `row_failures` is there for batches whose
    messages failed singly. A suspect may have killed its consumer: the client reports it as handed over
    before the application gets it, and acknowledges it at once.
    """

    incarnation: int
    number: int
    block: BlockRef
    row_set: RowSet
    redelivery_count: int
    is_suspect: bool
    row_failures: RowFailures

    @property
    def rows(self) -> RowRanges:
        """The rows as ranges."""
        return ranges_of(self.row_set)

    @property
    def messages(self) -> int:
        """How many rows these are."""
        return self.row_set.bit_count()


grant_of: Callable[[tuple[int, int, BlockRef, RowSet, int, bool, RowFailures]], Grant] = partial(
    tuple.__new__, Grant
)
"""As `Grant(*fields)`, without the function that a NamedTuple puts before it."""


class DropQueue(NamedTuple):
    """Action: have a consumer drop its queued messages of lower generations.

    Dropped messages count as consumed in its credit. `last_number` and `granted` are the consumer's counts at
    this moment: later grants are not meant. `start` is the mark-delete position that a seek of a non-durable
    cursor went to.
    """

    incarnation: int
    generation: int
    last_number: int
    granted: int
    is_seek: bool = False
    start: Position | None = None
