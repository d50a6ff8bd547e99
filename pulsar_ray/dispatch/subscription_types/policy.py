"""How a subscription type shares out its messages."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec, DispatchBlock, SuspectGroup
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.model.row_sets import RowSet

WHOLE_BLOCK_ROWS = 128
"""Blocks of fewer rows are cheap to decode twice, and cut whenever it helps."""


class GrantSource(Protocol):
    """The part of a dispatcher that a policy may use."""

    blocks: DispatchBlocks
    now_ms: int

    def room(self, consumer: Consumer) -> int:
        """How many messages a consumer may get now; 0 or less: none."""

    def room_of_all(self) -> int:
        """How many messages all consumers together may get now, by the limits that they share."""

    def grant(self, consumer: Consumer, block: DispatchBlock, limit: int) -> Grant:
        """Give waiting rows of a block to a consumer."""

    def grant_taken(self, consumer: Consumer, block: DispatchBlock, rows: RowSet, count: int) -> Grant:
        """Grant rows that share a redelivery count; the caller takes them off the block."""

    def room_on_trial(self, consumer: Consumer) -> int:
        """How many suspects a consumer may get now; 0 or less: none."""

    def grant_suspects(
        self, consumer: Consumer, group: SuspectGroup, block: DispatchBlock, rows: RowSet
    ) -> list[Grant]:
        """Grant suspect rows of a block that wait in a group."""


class DispatchPolicy(Protocol):
    """Shares out messages for the type of the consumers.

    One is made for the first consumer, and kept until the last has left.
    """

    is_ordered: bool
    """Redelivery goes back and repeats everything after it; cumulative acknowledgment is allowed."""
    limits_unacked: bool
    must_elect: bool
    """Consumers came or went, and it has to be found out which one gets messages."""
    active: Consumer | None
    """The consumer that alone gets messages, of a type that has one."""

    def admit(self, spec: ConsumerSpec, present: Collection[Consumer]) -> None:
        """Raise ConsumerBusy or ConsumerAssignError if this consumer may not join those present."""

    def join(self, consumer: Consumer) -> None:
        """The consumer is attached from now on."""

    def leave(self, consumer: Consumer) -> None:
        """The consumer is gone."""

    def dispatch(self, source: GrantSource) -> list[Grant]:
        """Grant what can be granted."""


def rows_that_fit(consumer: Consumer, block: DispatchBlock, wanted: int, room: int) -> int:
    """Return how many of a block's `wanted` rows fit a consumer; 0: it waits.

    An Arrow batch is worth most whole: each part is decoded anew. So a block is cut at the end of a
    consumer's permits only where it is larger than half of the consumer's queue. A smaller one waits:
    more than half of the queue is full then, and the client returns credit when it has consumed half.
    """
    if wanted <= room or block.is_batch:
        return wanted
    if WHOLE_BLOCK_ROWS <= wanted <= consumer.window // 2 and room == consumer.permits:
        return 0
    return room
