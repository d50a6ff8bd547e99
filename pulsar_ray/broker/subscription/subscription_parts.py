"""The parts of a dispatcher's subscriptions, put together here and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.serving.shipping_link import ShippingLink
from pulsar_ray.broker.subscription.consumers.connected_consumers import (
    BytesSender,
    ConnectedConsumers,
    ConsumerEndpoint,
    DeliverySender,
    EndpointFactory,
    PlaceSender,
)
from pulsar_ray.broker.subscription.consumers.standing_notice import StandingNotice
from pulsar_ray.broker.subscription.cursor_flusher import CursorDurability, CursorFlusher, MemoryOnly
from pulsar_ray.broker.subscription.delayed.delayed_tracker import index_directory
from pulsar_ray.broker.subscription.delayed.tracker_link import TrackedSubscription, TrackerLink
from pulsar_ray.broker.subscription.log.compacted_log import CompactedLog
from pulsar_ray.broker.subscription.log.core_feeder import CoreFeeder, ReadingWatch
from pulsar_ray.broker.subscription.log.incomplete_messages import AskPartition, IncompleteMessages
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.broker.subscription.subscription_stats import SubscriptionStats
from pulsar_ray.broker.subscription.subscription_turn import SubscriptionTurn
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.managed_ledger.delayed.delayed_index import dropped_key
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.packet_encoders import DeliverEncoder
from pulsar_ray.session.requests import OpenConsumer
from pulsar_ray.session.session_table import Session
from pulsar_ray.transport.cluster import Cluster


@dataclass(frozen=True)
class DispatcherContext:
    """The surroundings that all subscriptions of one dispatcher share."""

    topic: str
    settings: DispatchSettings
    clock: Clock
    cluster: Cluster
    loop: asyncio.AbstractEventLoop
    reader: DiskThread
    cursor_disk: DiskThread
    new_link: Callable[[int, str], ShippingLink | None]
    """Makes a link for the files of a partition below a prefix.

    None without an object store.
    """
    on_fatal: Callable[[BaseException], None]
    """Ends the process: a fenced owner of a cursor must not go on."""


def stored_subscription(
    context: DispatcherContext,
    name: str,
    cursor: ManagedCursor,
    store: CursorStore | None,
    log: LogView,
    directory: str,
    epoch: int,
    number: int,
    *,
    shipping: ShippingLink | None = None,
    on_mark_delete: Callable[[Position], None],
    on_demand: Callable[[], None],
    ask_partition: AskPartition,
) -> ServedSubscription:
    """Put together a subscription of a stored topic; `store` is None for a non-durable cursor.

    `number` is that of a durable subscription. `on_mark_delete` is called with each durable mark-delete
    position, `on_demand` when consumers have room again after a while without. `ask_partition` is about
    producers that left.
    """
    clock, loop, reader = context.clock, context.loop, context.reader
    core = Dispatcher(cursor, context.settings, epoch=epoch, now_ms=clock.monotonic_ms(), topic=context.topic)
    consumers, counts = ConnectedConsumers(epoch), SubscriptionStats(core, clock)
    is_held = store is not None
    durability = _durability(context, name, store, counts, on_mark_delete, shipping)
    read_log = CompactedLog(log, directory)
    feeder = CoreFeeder(name, core, read_log, consumers, durability, loop, reader, directory, holds=is_held)
    turn = SubscriptionTurn(
        core,
        log,
        feeder,
        consumers,
        durability,
        counts.traffic,
        clock,
        loop,
        on_demand=on_demand,
    )
    tracker: TrackerLink | None = None
    if is_held:
        tracked = TrackedSubscription(context.topic, name, number, directory, epoch)
        tracker = _tracker(context, tracked, core, log, resume=turn.schedule)
        turn.ask_tracker = tracker.update
    incomplete = IncompleteMessages(
        name, core, loop, ask_partition if is_held else None, when_dropped=durability.flush_soon
    )
    return ServedSubscription(
        name,
        core,
        consumers,
        _endpoints(context, name, directory),
        durability,
        feeder,
        turn,
        counts,
        clock,
        loop,
        incomplete,
        ReadingWatch(core, read_log, feeder),
        read_log,
        tracker,
    )


def _durability(
    context: DispatcherContext,
    name: str,
    store: CursorStore | None,
    counts: SubscriptionStats,
    on_mark_delete: Callable[[Position], None],
    shipping: ShippingLink | None,
) -> CursorDurability:
    """Make what writes the cursor's changes, if they are kept."""
    if store is None:
        return MemoryOnly()

    def moved(position: Position) -> None:
        counts.mark_delete_advanced()
        on_mark_delete(position)

    return CursorFlusher(
        name,
        store,
        context.loop,
        context.cursor_disk,
        on_mark_delete=moved,
        on_fatal=context.on_fatal,
        shipping=shipping,
    )


def _tracker(
    context: DispatcherContext,
    tracked: TrackedSubscription,
    core: Dispatcher,
    log: LogView,
    *,
    resume: Callable[[], None],
) -> TrackerLink:
    """Let a tracker keep the delayed messages of the core, which begins without any."""
    index = index_directory(Path(tracked.log_directory), tracked.number)
    core.delayed.begin(context.clock.now_ms(), dropped_key(index))
    return TrackerLink(
        tracked,
        core,
        log,
        context.cluster,
        context.clock,
        context.loop,
        context.reader,
        resume=resume,
        on_fatal=context.on_fatal,
    )


def _endpoints(context: DispatcherContext, name: str, directory: str) -> EndpointFactory:
    """Give each consumer that opens an endpoint, which sends it places in files or bytes."""

    def new_endpoint(session: Session, request: OpenConsumer, numbering: int) -> ConsumerEndpoint:
        encoder = DeliverEncoder(request.consumer_id, numbering)
        notice = StandingNotice(session, request.consumer_id, numbering)
        sender: DeliverySender
        if request.reads_files:
            sender = PlaceSender(session, encoder)
        else:
            sender = BytesSender(session, encoder, directory, context.loop, context.reader, notice)
        return ConsumerEndpoint(name, session, request, numbering, sender, notice)

    return new_endpoint
