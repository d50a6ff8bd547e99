"""Counts a subscription's traffic, and gives its stats and its figures for metrics.

That costs per consumer, whatever the backlog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pulsar_ray.broker.figures.actor_report import Figures
from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers, ConsumerEndpoint
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.consumer import Consumer
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.inspect.key_stats import KeyedConsumers, key_shared_consumer_stats, key_shared_stats
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.metric_catalogue import END_TO_END_LATENCY
from pulsar_ray.model.traffic import BucketCounts, OutgoingTraffic, RateMeter


class ConsumerTraffic:
    """Counted as it happens, over the consumers' re-attachments."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all = OutgoingTraffic(clock.monotonic_ms())
        self._consumers: dict[int, tuple[OutgoingTraffic, int]] = {}
        self.latency = BucketCounts(END_TO_END_LATENCY.buckets)
        """From the storing of blocks to their first way out, in seconds."""
        self.crashed = 0
        """Consumers that were lost without a farewell."""
        self._dead_lettered = 0
        """Messages that consumers which are gone moved to dead letter topics."""

    # --- what happens -----------------------------------------------------------------------------

    def joined(self, incarnation: int) -> None:
        """A consumer that was not known attached."""
        traffic = OutgoingTraffic(self._clock.monotonic_ms())
        self._consumers[incarnation] = (traffic, self._clock.now_ms())

    def left(self, endpoint: ConsumerEndpoint) -> None:
        """It is gone; what it was given, and moved, stays in the subscription's counters."""
        self._consumers.pop(endpoint.incarnation, None)
        self._dead_lettered += endpoint.dead_letters[0]

    def granted(self, by_consumer: Mapping[int, Sequence[Grant]]) -> None:
        """Consumers are sent these, by their incarnation."""
        now_ms = self._clock.now_ms()
        for incarnation, grants in by_consumer.items():
            messages = entries = size = redelivered = chunks = 0
            for grant in grants:
                block = grant.block
                rows = grant.row_set.bit_count()
                messages += rows
                entries += rows if block.row_is_entry else 1
                size += block.length * rows // block.messages
                if block.chunks:
                    chunks += 1 + len(block.chunks)
                    size += sum(chunk.length for chunk in block.chunks)
                if grant.redelivery_count:
                    redelivered += rows
                elif block.stored_ms:
                    self.latency.observe((now_ms - block.stored_ms) / 1000)
            self._all.delivered(messages, entries, size, redelivered, now_ms, chunks)
            if known := self._consumers.get(incarnation):
                known[0].delivered(messages, entries, size, redelivered, now_ms, chunks)

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

    def sample(self) -> None:
        """Once a second."""
        now_ms = self._clock.monotonic_ms()
        self._all.sample(now_ms)
        for traffic, _ in self._consumers.values():
            traffic.sample(now_ms)

    @property
    def sent(self) -> OutgoingTraffic:
        """The traffic of all consumers together."""
        return self._all

    def dead_lettered(self, endpoints: Iterable[ConsumerEndpoint]) -> int:
        """Return how many messages these and former consumers moved to dead letter topics."""
        return self._dead_lettered + sum(endpoint.dead_letters[0] for endpoint in endpoints)

    # --- describing -------------------------------------------------------------------------------

    def describe(self, core: KeyedConsumers, endpoints: Iterable[ConsumerEndpoint]) -> dict[str, Any]:
        """Traffic, type and consumers, with Pulsar's names where Pulsar has one. Costs per consumer."""
        consumer_type, active = core.type.kind, core.type.policy.active
        consumers = [self._consumer(core, endpoint) for endpoint in endpoints]
        return {
            **self._all.describe(),
            "type": "" if consumer_type is None else consumer_type.name.replace("KeyShared", "Key_Shared"),
            "activeConsumerName": "" if active is None else active.spec.name,
            "deadLetteredMessages": self._dead_lettered
            + sum(consumer["deadLetteredMessages"] for consumer in consumers),
            "deadLetterError": next(
                filter(None, (consumer["deadLetterError"] for consumer in consumers)), ""
            ),
            "consumers": consumers,
        }

    def _consumer(self, core: KeyedConsumers, endpoint: ConsumerEndpoint) -> dict[str, Any]:
        traffic, connected_ms = self._consumers[endpoint.incarnation]
        moved, error = endpoint.dead_letters
        return {
            "consumerName": endpoint.name,
            **traffic.describe(),
            **_state(core.consumers.get(endpoint.incarnation)),
            **key_shared_consumer_stats(core, endpoint.incarnation),
            "deadLetteredMessages": moved,
            "deadLetterError": error,
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


def traffic_figures(traffic: ConsumerTraffic, core: KeyedConsumers, consumers: ConnectedConsumers) -> Figures:
    """Return what any subscription has: messages out, and its consumers."""
    sent = traffic.sent
    rates = sent.describe()
    known = core.consumers.values()
    return Figures(
        {
            metrics.MESSAGES_OUT.name: sent.messages,
            metrics.BYTES_OUT.name: sent.bytes,
            metrics.REDELIVERED_MESSAGES.name: sent.redelivered,
            metrics.DEAD_LETTERED_MESSAGES.name: traffic.dead_lettered(consumers.values()),
            metrics.CRASHED_CONSUMERS.name: traffic.crashed,
        },
        {
            metrics.CONSUMERS.name: len(consumers),
            metrics.BLOCKED_CONSUMERS.name: sum(consumer.is_blocked for consumer in known),
            metrics.RECEIVER_QUEUE_MESSAGES.name: sum(max(consumer.permits, 0) for consumer in known),
            metrics.BLOCKED_HASHES.name: key_shared_stats(core).get("drainingHashesCount", 0),
        },
        {metrics.END_TO_END_LATENCY.name: traffic.latency.numbers()},
        {metrics.MESSAGES_OUT.name: rates["msgRateOut"], metrics.BYTES_OUT.name: rates["msgThroughputOut"]},
    )


def stored_figures(
    traffic: ConsumerTraffic, core: Dispatcher, consumers: ConnectedConsumers, delayed: int
) -> Figures:
    """Return what a subscription of a stored topic has: its cursor's progress as well."""
    figures = traffic_figures(traffic, core, consumers)
    gauges = figures.gauges
    gauges[metrics.UNACKED_MESSAGES.name] = core.blocks.unacked_messages
    gauges[metrics.DELAYED_MESSAGES.name] = delayed
    if core.is_blocked_on_unacked:
        gauges[metrics.BLOCKED_CONSUMERS.name] = len(consumers)
    if core.cursor.subscription.is_durable:
        gauges[metrics.ACK_HOLES.name] = len(core.cursor.deleted)
    return figures


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
            "readPosition": list(core.intake.read_position),
            "individuallyDeletedRanges": len(cursor.deleted),
            "individuallyDeletedEntries": cursor.deleted.entries,
            "subscriptionProperties": dict(cursor.subscription.properties),
            "problem": problem,
            "incompleteChunkedMessages": len(core.blocks.chunks),
            "droppedChunkedMessages": core.blocks.chunks.dropped,
            **key_shared_stats(core),
        }
