"""How a subscription type shares out its messages: the part of a dispatcher that differs between types."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec, DispatchBlock
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.model.row_sets import RowSet

WHOLE_BLOCK_ROWS = 128
"""A block of fewer rows is cheap to decode twice: it is cut without a second thought."""


class GrantSource(Protocol):
    """What a policy may use of the dispatcher."""

    blocks: DispatchBlocks
    now_ms: int

    def room(self, consumer: Consumer) -> int:
        """How many messages a consumer may get now; 0 or less: none."""

    def grant(self, consumer: Consumer, block: DispatchBlock, limit: int) -> Grant:
        """Give waiting rows of a block to a consumer."""

    def grant_taken(self, consumer: Consumer, block: DispatchBlock, rows: RowSet, count: int) -> Grant:
        """Give rows that share a redelivery count, and that the caller takes off the block, to a consumer."""

    def grant_suspect(self, consumer: Consumer, block: DispatchBlock, row: int | None = None) -> Grant:
        """Give one suspect message of a block, the first without `row`, to one that has nothing else."""


class DispatchPolicy(Protocol):
    """One per dispatcher, made for the type of its first consumer and kept until the last has left."""

    is_ordered: bool
    """Redelivery goes back and repeats everything after it; cumulative acknowledgment is allowed."""
    limits_unacked: bool
    must_elect: bool
    """Consumers came or went, and it has to be found out which one gets messages."""

    def admit(self, spec: ConsumerSpec, present: Collection[Consumer]) -> None:
        """Raise ConsumerBusy or ConsumerAssignError if this consumer may not join those present."""

    def join(self, consumer: Consumer) -> None:
        """The consumer is attached from now on."""

    def leave(self, consumer: Consumer) -> None:
        """The consumer is gone."""

    def dispatch(self, source: GrantSource) -> list[Grant]:
        """Grant what can be granted."""


def rows_that_fit(consumer: Consumer, block: DispatchBlock, wanted: int, room: int) -> int:
    """How many of the `wanted` rows of a block go to a consumer with this room; 0: it had better wait.

    An Arrow batch is worth most whole: each part is decoded anew. So a block is cut at the end of a
    consumer's permits only where it is larger than half of the consumer's queue. A smaller one waits:
    more than half of the queue is full then, and the client returns credit when it has consumed half.
    """
    if wanted <= room or block.is_batch:
        return wanted
    if WHOLE_BLOCK_ROWS <= wanted <= consumer.window // 2 and room == consumer.permits:
        return 0
    return room
