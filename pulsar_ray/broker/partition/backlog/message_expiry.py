"""Acknowledges messages that are older than their topic's `message_ttl`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pulsar_ray.broker.partition.backlog.expired_counts import ExpiredCounts
from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.clock import Clock
from pulsar_ray.managed_ledger.log.backlog_search import BacklogFront
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.store.wake_times import look_again_ms
from pulsar_ray.model.message_id import Position


class MessageExpiry:
    """Moves all durable subscriptions past what is too old (ADR 0049).

    Their dispatchers may sleep. Everything is on the owner loop; files are read on other threads.
    `on_expired` is called with the numbers of subscriptions once it is durable. Only front entries expire: an
    old one behind a younger one waits.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        policies: PartitionPolicies,
        clock: Clock,
        on_expired: Callable[[Sequence[int]], None],
        counts: ExpiredCounts,
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._policies = policies
        self._clock = clock
        self._on_expired = on_expired
        self._counts = counts
        self._running = asyncio.Lock()
        self._front: BacklogFront | None = None
        """The first entry that was not too old when the log was searched last."""

    def is_due(self) -> bool:
        """Whether anything may be too old by now; costs nothing while there is no policy."""
        if not self._policies.message_ttl_ms or self._running.locked():
            return False
        slowest = self._slowest()
        if slowest is None:
            return False
        front = self._front
        if front is None or front.stored_ms is None or front.stored_ms < self._oldest_ms():
            return True
        return slowest < self._ledger.changes.entry_before(front.position)

    async def run(self) -> None:
        """Acknowledge what is too old, durably. Raises BrokerPersistenceError if the disk refuses."""
        if not self._policies.message_ttl_ms:
            return
        async with self._running:
            slowest = self._slowest()
            if slowest is None:
                return
            front = await self._search(slowest)
            await self.expire_before(front.position)

    async def expire_before(self, position: Position) -> None:
        """Acknowledge what stands before a position for all durable subscriptions, durably."""
        changes = self._ledger.changes
        before = await self._counts.backlogs()
        numbers = [subscription.number for subscription in changes.subscriptions()]
        change = changes.expire(numbers, changes.entry_before(position))
        if change is not None:
            self._on_expired(await self._writer.durable(change))
            await self._counts.count_since(before)

    async def next_due_ms(self) -> int | None:
        """Return when a partition that sleeps is to look again; None: never.

        That is a while after the next message is too old: one start then serves several of them.
        """
        slowest = self._slowest() if self._policies.message_ttl_ms else None
        if slowest is None:
            return None
        front, ttl_ms = await self._search(slowest), self._policies.message_ttl_ms
        if front.stored_ms is None:
            return None
        return look_again_ms(front.stored_ms, ttl_ms)

    async def _search(self, slowest: Position) -> BacklogFront:
        """Find the first entry behind a hold that is not too old."""
        front, oldest_ms = self._front, self._oldest_ms()
        start = slowest.next()
        if front is not None and front.position >= start:
            if front.stored_ms is not None and front.stored_ms >= oldest_ms:
                return front
            start = front.position
        search = self._ledger.begin_backlog(start)
        loop = asyncio.get_running_loop()
        self._front = front = await loop.run_in_executor(None, search.run, oldest_ms)
        return front

    def _oldest_ms(self) -> int:
        return self._clock.now_ms() - self._policies.message_ttl_ms

    def _slowest(self) -> Position | None:
        """The lowest hold of a durable subscription that has a backlog."""
        durable = [s.hold for s in self._ledger.changes.subscriptions() if s.is_durable]
        slowest = min(durable, default=self._ledger.readable_position)
        return slowest if slowest < self._ledger.readable_position else None
