"""Making grants: rows become pending at a consumer, and are charged to it."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, Delivery, DispatchBlock
from pulsar_ray.dispatch.grant import Grant, grant_of
from pulsar_ray.dispatch.policies.subscription_type import SubscriptionType
from pulsar_ray.dispatch.unacked_limits import UnackedLimits
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.managed_ledger.cursor.redelivery_counts import RowFailures
from pulsar_ray.model.position import Position
from pulsar_ray.model.row_sets import RowSet


class GrantMaker:
    """The `GrantSource` that policies are given.

    `room` returns how many messages a consumer may get now.
    """

    def __init__(
        self,
        cursor: ManagedCursor,
        blocks: DispatchBlocks,
        limits: UnackedLimits,
        kind: SubscriptionType,
        room: Callable[[Consumer], int],
    ) -> None:
        self._cursor = cursor
        self.blocks = blocks
        self._limits = limits
        self._type = kind
        self.room = room
        self.now_ms = 0

    def grant(self, consumer: Consumer, block: DispatchBlock, limit: int) -> Grant:
        """Grant up to `limit` waiting rows of a block, or a whole batch."""
        rows, count = self.blocks.take(block, block.ref.messages if block.is_batch else limit)
        return self._deliver(consumer, block, rows, count, is_suspect=False)

    def grant_taken(self, consumer: Consumer, block: DispatchBlock, rows: RowSet, count: int) -> Grant:
        """Grant rows that share a redelivery count; the caller takes them off the block."""
        return self._deliver(consumer, block, rows, count, is_suspect=False)

    def grant_suspect(self, consumer: Consumer, block: DispatchBlock, row: int | None = None) -> Grant:
        """Grant one suspect message of a block to a consumer that has nothing else.

        It is the first one without `row`.
        """
        rows, count = self.blocks.suspects.take(block, row)
        return self._deliver(consumer, block, rows, count, is_suspect=True)

    def _deliver(
        self, consumer: Consumer, block: DispatchBlock, rows: RowSet, count: int, is_suspect: bool
    ) -> Grant:
        if block.is_batch:
            # Parts of an entry may have waited at several places; the entry has one count.
            count = self._cursor.counts.of(*block.key)
        delivery = self.blocks.deliver(consumer, block, rows, count, is_suspect)
        consumer.charge(delivery)
        if self._type.policy.limits_unacked:
            self._limits.granted(consumer)
        return self.grant_of(delivery)

    def grant_of(self, delivery: Delivery) -> Grant:
        """Make the grant of a delivery, also when it goes out once more."""
        block = delivery.block
        ref = block.ref
        failures: RowFailures = ()
        if block.is_batch:
            failures = self._cursor.counts.row_failures(Position(ref.ledger_id, ref.first_entry_id))
        consumer_id = delivery.consumer.spec.consumer_id
        number, rows, count = delivery.number, delivery.rows, delivery.count
        return grant_of((consumer_id, number, ref, rows, count, delivery.is_suspect, failures))
