"""Making grants: rows become pending at a consumer, and are charged to it."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, Delivery, DispatchBlock, SuspectGroup
from pulsar_ray.dispatch.grant import Grant, grant_of
from pulsar_ray.dispatch.policies.subscription_type import SubscriptionType
from pulsar_ray.dispatch.unacked_limits import UnackedLimits
from pulsar_ray.managed_ledger.cursor.redelivery_counts import RedeliveryCounts
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.rate_limit import NO_LIMIT
from pulsar_ray.model.row_ranges import RowFailures
from pulsar_ray.model.row_sets import RowSet


class GrantMaker:
    """The `GrantSource` that policies are given.

    `counts` says how often messages failed, `room` how many messages a consumer may get now; `limits` notices
    that a consumer has too many unacknowledged ones (None: nobody counts them).
    """

    def __init__(
        self,
        counts: RedeliveryCounts,
        blocks: DispatchBlocks,
        kind: SubscriptionType,
        room: Callable[[Consumer], int],
        limits: UnackedLimits | None = None,
    ) -> None:
        self._counts = counts
        self.blocks = blocks
        self._limits = limits
        self._type = kind
        self.room = room
        self.now_ms = 0

    def room_of_all(self) -> int:
        """How many messages all consumers together may get now, by the limits that they share."""
        if self._limits is None or not self._type.policy.limits_unacked:
            return NO_LIMIT
        return self._limits.room_of_all()

    def grant(self, consumer: Consumer, block: DispatchBlock, limit: int) -> Grant:
        """Grant up to `limit` waiting rows of a block, or a whole batch.

        A batch of which some rows are suspect does not go whole.
        """
        goes_whole = block.is_batch and not block.suspects
        rows, count = self.blocks.take(block, block.ref.messages if goes_whole else limit)
        return self._deliver(consumer, block, rows, count)

    def grant_taken(self, consumer: Consumer, block: DispatchBlock, rows: RowSet, count: int) -> Grant:
        """Grant rows that share a redelivery count; the caller takes them off the block."""
        return self._deliver(consumer, block, rows, count)

    def room_on_trial(self, consumer: Consumer) -> int:
        """How many suspects a consumer may get now; 0 or less: none."""
        limits = self._limits if self._type.policy.limits_unacked else None
        return consumer.room_on_trial(0 if limits is None else limits.of_consumer)

    def grant_suspects(
        self, consumer: Consumer, group: SuspectGroup, block: DispatchBlock, rows: RowSet
    ) -> list[Grant]:
        """Grant suspect rows of a block that wait in a group."""
        if consumer.trial is not group:
            consumer.is_trial_over = False
        # Patience begins with the last of them: a program may take them one by one.
        consumer.trial_since_ms = self.now_ms
        return [
            self._deliver(consumer, block, part, count, group)
            for part, count in self.blocks.suspects.take(group, block, rows)
        ]

    def _deliver(
        self,
        consumer: Consumer,
        block: DispatchBlock,
        rows: RowSet,
        count: int,
        group: SuspectGroup | None = None,
    ) -> Grant:
        if group is None:
            consumer.has_flowed = True
        if block.is_batch:
            # Parts of an entry may have waited at several places; the entry has one count.
            count = self._counts.of(*block.key)
        delivery = self.blocks.deliver(consumer, block, rows, count, group)
        consumer.charge(delivery)
        if self._limits is not None and self._type.policy.limits_unacked:
            self._limits.granted(consumer)
        return self.grant_of(delivery)

    def grant_of(self, delivery: Delivery) -> Grant:
        """Make the grant of a delivery, also when it goes out once more."""
        block = delivery.block
        ref = block.ref
        failures: RowFailures = ()
        if block.is_batch:
            failures = self._counts.row_failures(Position(ref.ledger_id, ref.first_entry_id))
        consumer_id = delivery.consumer.spec.consumer_id
        number, rows, count = delivery.number, delivery.rows, delivery.count
        return grant_of((consumer_id, number, ref, rows, count, delivery.group is not None, failures))
