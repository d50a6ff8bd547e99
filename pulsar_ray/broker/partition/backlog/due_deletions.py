"""Deletes what is due in a partition: expired, evicted, unused, or kept long enough."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from pulsar_ray.broker.partition.backlog.backlog_quota import BacklogQuota
from pulsar_ray.broker.partition.backlog.message_expiry import MessageExpiry
from pulsar_ray.broker.partition.backlog.subscription_expiry import SubscriptionExpiry
from pulsar_ray.broker.partition.backlog.topic_inactivity import TopicInactivity
from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.broker.partition.topic_use import TopicUse
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.clock import Clock
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger

logger = logging.getLogger(__name__)


class DueDeletions:
    """Deletes messages, subscriptions and ledgers that policies keep no longer.

    While it is not known whether the policies are current, nothing goes but what the backlog quota evicts,
    which asks for itself. `spawn` runs a coroutine beside the rest; `on_unused` is called when the topic
    itself is due. Belongs to the owner loop.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        in_force: PoliciesInForce,
        policies: PartitionPolicies,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        messages: MessageExpiry,
        quota: BacklogQuota,
        cursors: SleepingCursors,
        use: TopicUse,
        on_unused: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._in_force = in_force
        self._clock = clock
        self._loop = loop
        self._spawn = spawn
        self._messages = messages
        self._quota = quota
        self._subscriptions = SubscriptionExpiry(ledger, writer, policies, clock, use.followed, cursors)
        self._topic = TopicInactivity(
            ledger,
            writer,
            policies,
            clock,
            use.counts,
            use.has_producers,
            use.followed,
            cursors,
            on_unused,
        )
        self._trimmed_at = loop.time()

    @property
    def is_topic_due(self) -> bool:
        """Whether nobody has used the topic for so long that its policies have it deleted."""
        return self._in_force.are_current and self._topic.is_over()

    def is_used(self, subscription_number: int) -> None:
        """Count anew for a subscription: its dispatcher is starting."""
        self._subscriptions.used(subscription_number)

    def tick(self, trim_interval_s: float) -> None:
        """Begin what is due; once a second."""
        if self._in_force.are_current and self._messages.is_due():
            self._spawn(self._expire())
        if self._quota.is_due():
            self._quota.decide_again()
        if not self._in_force.are_current:
            return
        self._subscriptions.tick()
        self._topic.tick()
        if self._loop.time() - self._trimmed_at >= trim_interval_s:
            self._trimmed_at = self._loop.time()
            self._writer.submit(self._ledger.changes.trim(self._clock.now_ms()))

    async def _expire(self) -> None:
        """Acknowledge what is too old; a disk that refuses is asked again."""
        try:
            await self._messages.run()
        except BrokerPersistenceError as error:
            logger.warning("%s", error)

    async def settle(self) -> None:
        """Delete, durably, all that is due. Raises BrokerPersistenceError."""
        if self._in_force.are_current:
            await self._subscriptions.settle()
            await self._messages.run()
            await self._quota.look()
        await self._writer.durable(self._ledger.changes.trim(self._clock.now_ms(), is_leaving=True))

    async def leave(self) -> None:
        """Note since when the topic and its subscriptions are unused, which counts on in sleep.

        Where a disk refuses, the time counts from the next sleep on.
        """
        if self._in_force.are_current:
            with contextlib.suppress(BrokerPersistenceError):
                await self._subscriptions.leave()
                await self._topic.leave()

    async def next_due_ms(self) -> int | None:
        """When a partition that sleeps has something to delete; None if time alone brings nothing."""
        due_ms = [
            self._ledger.changes.next_trim_ms(),
            self._subscriptions.next_due_ms(),
            self._topic.next_due_ms(),
            await self._messages.next_due_ms(),
            await self._quota.next_due_ms(),
        ]
        return min((time_ms for time_ms in due_ms if time_ms is not None), default=None)
