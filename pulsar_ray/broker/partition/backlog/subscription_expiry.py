"""Deletes subscriptions of a partition that nobody has used for long."""

from __future__ import annotations

import logging
from collections.abc import Callable, Set

from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.clock import Clock
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger

logger = logging.getLogger(__name__)

MINUTE_MS = 60_000


class SubscriptionExpiry:
    """Knows since when the dispatcher of each durable subscription has not run.

    It does not run when no consumer is connected. The time is counted while the partition is awake: before it
    sleeps, clients may stay attached whose consumers it does not know. `followed` gives the numbers of those
    that run. Belongs to the owner loop.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        policies: PartitionPolicies,
        clock: Clock,
        followed: Callable[[], Set[int]],
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._policies = policies
        self._clock = clock
        self._followed = followed
        self._unused_since_ms: dict[int, int] = {}

    def used(self, number: int) -> None:
        """Count anew: the dispatcher of a subscription is starting."""
        self._unused_since_ms.pop(number, None)

    def tick(self) -> None:
        """Delete what nobody has used for long enough; once a second."""
        limit_ms = self._policies.subscription_expiration_minutes * MINUTE_MS
        if not limit_ms:
            self._unused_since_ms.clear()
            return
        now_ms, followed = self._clock.monotonic_ms(), self._followed()
        unused = [
            s for s in self._ledger.changes.subscriptions() if s.is_durable and s.number not in followed
        ]
        self._unused_since_ms = {s.number: self._unused_since_ms.get(s.number, now_ms) for s in unused}
        for subscription in unused:
            if now_ms - self._unused_since_ms[subscription.number] >= limit_ms:
                logger.info(
                    "subscription %r of %s is deleted: nobody has used it for %d minutes",
                    subscription.name,
                    self._ledger.identity.topic,
                    self._policies.subscription_expiration_minutes,
                )
                self._writer.submit(self._ledger.changes.remove_subscription(subscription.number))
                del self._unused_since_ms[subscription.number]
