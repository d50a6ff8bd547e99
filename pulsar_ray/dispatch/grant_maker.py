"""Makes grants within limits and rates: rows become pending, and are charged to a consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, Delivery, DispatchBlock, SuspectGroup
from pulsar_ray.dispatch.grant import Grant, grant_of
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.dispatch.subscription_types.subscription_type import SubscriptionType
from pulsar_ray.managed_ledger.cursor.redelivery_counts import RedeliveryCounts
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.rate_limit import NO_LIMIT, RateLimit
from pulsar_ray.model.row_ranges import RowFailures
from pulsar_ray.model.row_sets import RowSet


class UnackedLimits:
    """A limit that was reached holds until half is acknowledged; 0 means no limit.

    The limits of unacknowledged messages are for durable subscriptions of some types, that of pending
    deliveries is for all.
    """

    def __init__(
        self, settings: DispatchSettings, blocks: DispatchBlocks, kind: SubscriptionType, *, is_durable: bool
    ) -> None:
        self._settings = settings
        self._blocks = blocks
        self._type = kind
        self._is_durable = is_durable
        self._in_force = self._limits()
        self.is_blocked = False
        """Nothing is dispatched until half of the subscription's limit is acknowledged."""

    @property
    def of_consumer(self) -> int:
        """How many a consumer may leave unacknowledged; 0 means no limit."""
        return self._settings.max_unacked_messages_per_consumer

    @property
    def is_full_of_pending_acks(self) -> bool:
        """Whether consumers hold as many unacknowledged deliveries as this process has memory for."""
        return 0 < self._settings.max_pending_acks_per_subscription <= self._blocks.pending_acks

    def room(self, consumer: Consumer) -> int:
        """How many messages a consumer may get now; 0 or less: none."""
        if self.is_full_of_pending_acks:
            return 0
        if not (self._is_durable and self._type.policy.limits_unacked):
            return consumer.room(0)
        settings = self._settings
        room = consumer.room(settings.max_unacked_messages_per_consumer)
        limit = settings.max_unacked_messages_per_subscription
        if not limit:
            return room
        unacked = self._blocks.unacked_messages
        if self.is_blocked and unacked >= limit // 2:
            return 0
        self.is_blocked = False
        left = limit - unacked
        return room if room < left else left

    def room_of_all(self) -> int:
        """How many messages all consumers together may get until the subscription's limit."""
        limit = self._settings.max_unacked_messages_per_subscription
        return limit - self._blocks.unacked_messages if limit else NO_LIMIT

    def granted(self, consumer: Consumer) -> None:
        """Notice that a limit was reached."""
        settings = self._settings
        if 0 < settings.max_unacked_messages_per_consumer <= consumer.unacked:
            consumer.is_blocked = True
        if 0 < settings.max_unacked_messages_per_subscription <= self._blocks.unacked_messages:
            self.is_blocked = True

    def settings_changed(self, consumers: Iterable[Consumer]) -> None:
        """Block those that have reached a limit of now, and no others.

        Nothing is done if the limits are as before.
        """
        if self._limits() == self._in_force:
            return
        self._in_force = per_consumer, per_subscription = self._limits()
        self.is_blocked = 0 < per_subscription <= self._blocks.unacked_messages
        for consumer in consumers:
            consumer.is_blocked = 0 < per_consumer <= consumer.unacked

    def _limits(self) -> tuple[int, int]:
        settings = self._settings
        return settings.max_unacked_messages_per_consumer, settings.max_unacked_messages_per_subscription


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
        return self.grant_taken(consumer, block, rows, count)

    def room_on_trial(self, consumer: Consumer) -> int:
        """How many suspects a consumer may get now; 0 or less: none."""
        limits = self._limits if self._type.policy.limits_unacked else None
        return consumer.room(0 if limits is None else limits.of_consumer, of_suspects=True)

    def grant_suspects(
        self, consumer: Consumer, group: SuspectGroup, block: DispatchBlock, rows: RowSet
    ) -> list[Grant]:
        """Grant suspect rows of a block that wait in a group."""
        consumer.trial.go_on(group, self.now_ms)
        return [
            self.grant_taken(consumer, block, part, count, group)
            for part, count in self.blocks.suspects.take(group, block, rows)
        ]

    def grant_taken(
        self,
        consumer: Consumer,
        block: DispatchBlock,
        rows: RowSet,
        count: int,
        group: SuspectGroup | None = None,
    ) -> Grant:
        """Grant rows that share a redelivery count; the caller takes them off the block."""
        if group is None:
            consumer.trial.has_flowed = True
        if block.is_batch:
            # Parts of an entry may have waited at several places; the entry has one count.
            count = self._counts.of(*block.key)
        delivery = self.blocks.deliver(consumer, block, rows, count, group)
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
        incarnation = delivery.consumer.spec.incarnation
        number, rows, count = delivery.number, delivery.rows, delivery.count
        return grant_of((incarnation, number, ref, rows, count, delivery.group is not None, failures))


class RatedGrants:
    """A `GrantSource` that gives consumers no more room than the rate leaves.

    A batch goes whole, and the first grant whatever its bytes: the debt is paid before the next one.
    """

    def __init__(self, granting: GrantMaker, limit: RateLimit) -> None:
        self._granting = granting
        self.blocks = granting.blocks
        self.limit = limit

    @property
    def now_ms(self) -> int:
        return self._granting.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._granting.now_ms = now_ms

    @classmethod
    def of(
        cls, settings: DispatchSettings, granting: GrantMaker, former: RatedGrants | None
    ) -> RatedGrants | None:
        """Make them for the rate that holds now, None if there is none.

        They begin anew only if the rate has changed: then no former debt is paid.
        """
        rates = (settings.dispatch_rate_messages, settings.dispatch_rate_bytes)
        if former is not None and former.limit.is_of(*rates):
            return former
        limit = RateLimit.of(*rates)
        return None if limit is None else cls(granting, limit)

    def room(self, consumer: Consumer) -> int:
        """How many messages a consumer may get now; 0 or less: none."""
        return min(self._granting.room(consumer), self.limit.messages_left(self.now_ms))

    def room_of_all(self) -> int:
        """How many messages all consumers together may get now, by the limits that they share."""
        return min(self._granting.room_of_all(), self.limit.messages_left(self.now_ms))

    def grant(self, consumer: Consumer, block: DispatchBlock, limit: int) -> Grant:
        """See GrantSource."""
        return self._charged(self._granting.grant(consumer, block, limit))

    def grant_taken(self, consumer: Consumer, block: DispatchBlock, rows: RowSet, count: int) -> Grant:
        """See GrantSource."""
        return self._charged(self._granting.grant_taken(consumer, block, rows, count))

    def room_on_trial(self, consumer: Consumer) -> int:
        """See GrantSource."""
        return min(self._granting.room_on_trial(consumer), self.limit.messages_left(self.now_ms))

    def grant_suspects(
        self, consumer: Consumer, group: SuspectGroup, block: DispatchBlock, rows: RowSet
    ) -> list[Grant]:
        """See GrantSource."""
        return [self._charged(grant) for grant in self._granting.grant_suspects(consumer, group, block, rows)]

    def _charged(self, grant: Grant) -> Grant:
        messages, block = grant.messages, grant.block
        self.limit.take(messages, block.length * messages // block.messages, self.now_ms)
        return grant
