"""The stats of a subscription: counted as it happens, sampled once a second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.consumer import Consumer
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.inspect.key_stats import key_shared_consumer_stats, key_shared_stats
from pulsar_ray.model.rate_meter import RateMeter
from pulsar_ray.model.traffic import OutgoingTraffic


class SubscriptionStats:
    """Traffic of a subscription and of each of its consumers, over their re-attachments."""

    def __init__(self, core: Dispatcher, clock: Clock) -> None:
        self._core = core
        self._clock = clock
        now_ms = clock.monotonic_ms()
        self._all = OutgoingTraffic(now_ms)
        self._consumers: dict[int, tuple[OutgoingTraffic, int]] = {}
        self._expired = 0
        self._expiry = RateMeter(now_ms, (0,))
        self._last_expired_ms = 0
        self._mark_delete_ms = 0

    # --- what happens -----------------------------------------------------------------------------

    def joined(self, incarnation: int) -> None:
        """A consumer that was not known attached."""
        traffic = OutgoingTraffic(self._clock.monotonic_ms())
        self._consumers[incarnation] = (traffic, self._clock.now_ms())

    def left(self, incarnation: int) -> None:
        """It is gone; what it was given stays in the subscription's counters."""
        self._consumers.pop(incarnation, None)

    def granted(self, incarnation: int, grants: Sequence[Grant]) -> None:
        """A consumer is sent these."""
        messages = entries = size = redelivered = 0
        for grant in grants:
            block = grant.block
            rows = grant.row_set.bit_count()
            messages += rows
            entries += rows if block.row_is_entry else 1
            size += block.length * rows // block.messages
            if grant.redelivery_count:
                redelivered += rows
        now_ms = self._clock.now_ms()
        self._all.delivered(messages, entries, size, redelivered, now_ms)
        if known := self._consumers.get(incarnation):
            known[0].delivered(messages, entries, size, redelivered, now_ms)

    def acknowledged(self, incarnation: int, messages: int) -> None:
        """A consumer acknowledged; so many of the messages were pending."""
        now_ms = self._clock.now_ms()
        self._all.acked(messages, now_ms)
        if known := self._consumers.get(incarnation):
            known[0].acked(messages, now_ms)

    def credited(self, incarnation: int) -> None:
        """Count a consumer's report of its credit."""
        now_ms = self._clock.now_ms()
        self._all.last_flow_ms = now_ms
        if known := self._consumers.get(incarnation):
            known[0].last_flow_ms = now_ms

    def expired(self, entries: int) -> None:
        """Entries were acknowledged because of their age."""
        self._expired += entries
        self._last_expired_ms = self._clock.now_ms()

    def mark_delete_advanced(self) -> None:
        """The mark-delete position moved, durably."""
        self._mark_delete_ms = self._clock.now_ms()

    def sample(self) -> None:
        """Once a second."""
        now_ms = self._clock.monotonic_ms()
        self._all.sample(now_ms)
        self._expiry.sample(now_ms, (self._expired,))
        for traffic, _ in self._consumers.values():
            traffic.sample(now_ms)

    # --- describing -------------------------------------------------------------------------------

    def describe(self, endpoints: Iterable[ConsumerEndpoint], problem: str) -> dict[str, Any]:
        """Pulsar's names where Pulsar has one. Costs per consumer, whatever the backlog."""
        core = self._core
        cursor = core.cursor
        consumer_type = core.consumer_type
        return {
            **self._all.describe(),
            "type": "" if consumer_type is None else consumer_type.name.replace("KeyShared", "Key_Shared"),
            "activeConsumerName": core.active_consumer_name,
            "msgBacklog": cursor.backlog(),
            "unackedMessages": core.blocks.unacked_messages,
            "blockedSubscriptionOnUnackedMsgs": core.is_blocked_on_unacked,
            "msgRateExpired": self._expiry.per_second()[0],
            "totalMsgExpired": self._expired,
            "lastExpireTimestamp": self._last_expired_ms,
            "lastMarkDeleteAdvancedTimestamp": self._mark_delete_ms,
            "markDeletePosition": list(cursor.mark_delete),
            "readPosition": list(core.read_position),
            "individuallyDeletedRanges": len(cursor.deleted),
            "individuallyDeletedEntries": cursor.deleted.count(),
            "subscriptionProperties": dict(cursor.subscription.properties),
            "problem": problem,
            **key_shared_stats(core),
            "consumers": [self._consumer(endpoint) for endpoint in endpoints],
        }

    def _consumer(self, endpoint: ConsumerEndpoint) -> dict[str, Any]:
        traffic, connected_ms = self._consumers[endpoint.incarnation]
        known = self._core.consumers.get(endpoint.incarnation)
        return {
            "consumerName": endpoint.name,
            **traffic.describe(),
            **_state(known),
            **key_shared_consumer_stats(self._core, endpoint.incarnation),
            "avgMessagesPerEntry": round(traffic.messages_per_entry),
            "connectedSince": connected_ms,
            "address": endpoint.session.client_id,
            "metadata": dict(endpoint.metadata),
            "readsFiles": endpoint.reads_files,
            "carrier": endpoint.session.carrier.kind if endpoint.session.carrier else "none",
        }


def _state(consumer: Consumer | None) -> dict[str, Any]:
    if consumer is None:
        return {"availablePermits": 0, "unackedMessages": 0, "blockedConsumerOnUnackedMsgs": False}
    return {
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
    }
