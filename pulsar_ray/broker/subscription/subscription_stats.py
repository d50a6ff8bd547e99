"""The stats of a stored topic's subscription: traffic, and its cursor's progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.broker.subscription.consumers.consumer_traffic import ConsumerTraffic
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.inspect.key_stats import key_shared_stats
from pulsar_ray.model.traffic import RateMeter


class SubscriptionStats:
    """Counted as it happens, sampled once a second."""

    def __init__(self, core: Dispatcher, clock: Clock) -> None:
        self.traffic = ConsumerTraffic(clock)
        self._core = core
        self._clock = clock
        self._expired = 0
        self._expiry = RateMeter(clock.monotonic_ms(), (0,))
        self._last_expired_ms = 0
        self._mark_delete_ms = 0

    def expired(self, entries: int) -> None:
        """Entries were acknowledged because of their age."""
        self._expired += entries
        self._last_expired_ms = self._clock.now_ms()

    def mark_delete_advanced(self) -> None:
        """The mark-delete position moved, durably."""
        self._mark_delete_ms = self._clock.now_ms()

    def sample(self) -> None:
        """Once a second."""
        self.traffic.sample()
        self._expiry.sample(self._clock.monotonic_ms(), (self._expired,))

    def describe(self, endpoints: Iterable[ConsumerEndpoint], problem: str, delayed: int) -> dict[str, Any]:
        """Pulsar's names where Pulsar has one. Costs per consumer, whatever the backlog."""
        core = self._core
        cursor = core.cursor
        return {
            **self.traffic.describe(core, endpoints),
            "msgBacklog": cursor.backlog(),
            "msgDelayed": delayed,
            "msgBacklogNoDelayed": cursor.backlog() - delayed,
            "unackedMessages": core.blocks.unacked_messages,
            "blockedSubscriptionOnUnackedMsgs": core.is_blocked_on_unacked,
            "msgRateExpired": self._expiry.per_second()[0],
            "totalMsgExpired": self._expired,
            "lastExpireTimestamp": self._last_expired_ms,
            "lastMarkDeleteAdvancedTimestamp": self._mark_delete_ms,
            "markDeletePosition": list(cursor.mark_delete),
            "logEnd": list(cursor.ledgers.end),
            "readPosition": list(core.read_position),
            "individuallyDeletedRanges": len(cursor.deleted),
            "individuallyDeletedEntries": cursor.deleted.count(),
            "subscriptionProperties": dict(cursor.subscription.properties),
            "problem": problem,
            "incompleteChunkedMessages": len(core.blocks.chunks),
            "droppedChunkedMessages": core.blocks.chunks.dropped,
            **key_shared_stats(core),
        }
