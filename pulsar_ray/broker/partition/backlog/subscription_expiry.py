"""Deletes subscriptions of a partition that nobody has used for long (ADR 0064)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Set

from pulsar_ray.broker.partition.backlog.unused_time import UnusedTime, look_again_ms
from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.clock import Clock
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_change import ManifestChange

logger = logging.getLogger(__name__)

MINUTE_MS = 60_000


class SubscriptionExpiry:
    """Knows since when the dispatcher of each durable subscription has not run.

    It does not run when no consumer is connected. `followed` gives the numbers of those that run. The time is
    durable, so it counts through sleeps and crashes: it is noted once a dispatcher has been away for a minute
    while the partition was awake, or when the partition falls asleep and no consumer is parked. Consumers
    that are come back within that minute when the partition wakes. Belongs to the owner loop.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        policies: PartitionPolicies,
        clock: Clock,
        followed: Callable[[], Set[int]],
        cursors: SleepingCursors,
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._policies = policies
        self._clock = clock
        self._followed = followed
        self._cursors = cursors
        self._unused_since_ms: dict[int, int] = {}
        """By the monotonic clock."""
        self._time = UnusedTime(clock)
        self._noted: set[int] = set()
        """Those whose note is durable, or on its way."""
        self._is_off = False
        """Whether nothing is left of a policy that does not hold any more."""

    @property
    def _limit_ms(self) -> int:
        return self._policies.subscription_expiration_minutes * MINUTE_MS

    def used(self, number: int) -> None:
        """Count anew: the dispatcher of a subscription is starting."""
        self._unused_since_ms.pop(number, None)
        self._writer.submit(self._note_used([number]))

    def tick(self) -> None:
        """Delete what nobody has used for long enough; once a second."""
        self._look()
        self._writer.submit(self._remove_old())
        if self._limit_ms:
            before_ms = self._clock.monotonic_ms() - MINUTE_MS
            self._writer.submit(
                self._note_unused(n for n, since in self._unused_since_ms.items() if since <= before_ms)
            )

    async def settle(self) -> None:
        """Delete, durably, what nobody has used for long enough. Raises BrokerPersistenceError."""
        self._look()
        await self._writer.durable(self._remove_old())

    async def leave(self) -> None:
        """Note what nobody uses while the partition sleeps. Raises BrokerPersistenceError.

        All dispatchers have left; those whose cursors know consumers have some that are parked.
        """
        if not self._limit_ms:
            return
        unused = [s for s in self._ledger.changes.durable_subscriptions() if s.number not in self._noted]
        await self._cursors.learn(unused)
        left = [s.number for s in unused if not self._cursors.may_have_consumers(s.number)]
        now_ms = self._clock.monotonic_ms()
        self._unused_since_ms = dict.fromkeys(left, now_ms) | self._unused_since_ms
        await self._writer.durable(self._note_unused(left))

    def next_due_ms(self) -> int | None:
        """Return when a partition that sleeps is to look again; None: never."""
        limit_ms = self._limit_ms
        durable = self._ledger.changes.durable_subscriptions()
        noted = [s.unused_since_ms for s in durable if s.unused_since_ms]
        if not limit_ms or not noted:
            return None
        return look_again_ms(min(noted), limit_ms)

    def _look(self) -> None:
        """Take in who is used; without the policy nothing counts."""
        if self._is_off and not self._limit_ms:
            return
        self._is_off = not self._limit_ms
        durable = self._ledger.changes.durable_subscriptions()
        used = self._followed() if self._limit_ms else {s.number for s in durable}
        self._noted |= {s.number for s in durable if s.unused_since_ms}
        if returned := [s.number for s in durable if s.number in used and s.number in self._noted]:
            self._writer.submit(self._note_used(returned))
        known = self._unused_since_ms
        self._unused_since_ms = {
            s.number: known[s.number] if s.number in known else self._time.since_ms(s.unused_since_ms)
            for s in durable
            if s.number not in used
        }

    def _remove_old(self) -> ManifestChange | None:
        limit_ms, now_ms = self._limit_ms, self._clock.monotonic_ms()
        old = [number for number, since in self._unused_since_ms.items() if now_ms - since >= limit_ms]
        for number in old:
            del self._unused_since_ms[number]
            subscription = self._ledger.changes.subscription(number)
            logger.info(
                "subscription %r of %s is deleted: nobody has used it for %d minutes",
                subscription.name if subscription is not None else number,
                self._ledger.identity.topic,
                self._policies.subscription_expiration_minutes,
            )
        return self._ledger.changes.remove_subscriptions(old) if old else None

    def _note_unused(self, numbers: Iterable[int]) -> ManifestChange | None:
        """Note since when subscriptions are unused."""
        time, unused = self._time, self._unused_since_ms
        since = {n: time.to_note_ms(unused[n]) for n in numbers if n not in self._noted}
        self._noted |= set(since)
        return self._ledger.changes.note_unused(since) if since else None

    def _note_used(self, numbers: Iterable[int]) -> ManifestChange | None:
        used = {n: 0 for n in numbers if n in self._noted or self._has_note(n)}
        self._noted -= set(used)
        return self._ledger.changes.note_unused(used) if used else None

    def _has_note(self, number: int) -> bool:
        known = self._ledger.changes.subscription(number)
        return known is not None and known.unused_since_ms > 0
