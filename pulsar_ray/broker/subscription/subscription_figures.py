"""Gathers the figures that a subscription reports to the metrics of its node.

That costs per consumer, whatever the backlog.
"""

from __future__ import annotations

from pulsar_ray.broker.figures.actor_report import Figures
from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers
from pulsar_ray.broker.subscription.consumers.consumer_traffic import ConsumerTraffic
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.inspect.key_stats import KeyedConsumers, key_shared_stats
from pulsar_ray.model import metric_catalogue as metrics


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
