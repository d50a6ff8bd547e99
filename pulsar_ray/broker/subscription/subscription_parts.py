"""The parts of a dispatcher's subscriptions, put together here and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers
from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.broker.subscription.consumers.delivery_senders import (
    BytesSender,
    DeliverySender,
    PlaceSender,
)
from pulsar_ray.broker.subscription.cursor_flusher import CursorDurability, CursorFlusher, MemoryOnly
from pulsar_ray.broker.subscription.log.core_feeder import CoreFeeder
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.non_persistent.passing_sender import Bodies, PassingSender, has_room
from pulsar_ray.broker.subscription.non_persistent.passing_subscription import NoLog, PassingSubscription
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.broker.subscription.subscription_stats import SubscriptionStats
from pulsar_ray.broker.subscription.subscription_turn import SubscriptionTurn
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.non_persistent import NonPersistentDispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.model.position import Position
from pulsar_ray.session.deliver_packets import DeliverEncoder
from pulsar_ray.session.requests import OpenConsumer
from pulsar_ray.session.session_table import Session


@dataclass(frozen=True)
class DispatcherContext:
    """The surroundings that all subscriptions of one dispatcher share."""

    topic: str
    settings: DispatchSettings
    clock: Clock
    loop: asyncio.AbstractEventLoop
    reader: DiskThread
    cursor_disk: DiskThread
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
    *,
    on_mark_delete: Callable[[Position], None],
    on_demand: Callable[[], None],
) -> ServedSubscription:
    """Put together a subscription of a stored topic; `store` is None for a non-durable cursor.

    `on_mark_delete` is called with each durable mark-delete position, `on_demand` when consumers have room
    again after a while without.
    """
    clock, loop, reader = context.clock, context.loop, context.reader
    core = Dispatcher(cursor, context.settings, epoch=epoch, now_ms=clock.monotonic_ms(), topic=context.topic)
    consumers, counts = ConnectedConsumers(epoch), SubscriptionStats(core, clock)
    durability: CursorDurability = MemoryOnly()
    if store is not None:

        def moved(position: Position) -> None:
            counts.mark_delete_advanced()
            on_mark_delete(position)

        durability = CursorFlusher(
            name, store, loop, context.cursor_disk, on_mark_delete=moved, on_fatal=context.on_fatal
        )
    is_held = store is not None
    feeder = CoreFeeder(name, core, log, consumers, durability, loop, reader, directory, holds=is_held)
    turn = SubscriptionTurn(
        core, log, feeder, consumers, durability, counts, clock, loop, on_demand=on_demand
    )

    def new_endpoint(session: Session, request: OpenConsumer, numbering: int) -> ConsumerEndpoint:
        encoder = DeliverEncoder(request.consumer_id, numbering)
        sender: DeliverySender
        if request.reads_files:
            sender = PlaceSender(session, encoder)
        else:
            sender = BytesSender(session, encoder, directory, loop, reader, is_held=is_held)
        return ConsumerEndpoint(name, session, request, numbering, sender)

    return ServedSubscription(
        name, core, consumers, new_endpoint, durability, feeder, turn, counts, clock, loop
    )


def passing_subscription(context: DispatcherContext, name: str, epoch: int) -> PassingSubscription:
    """Put together a subscription of a non-persistent topic, without log and cursor file."""
    clock, loop = context.clock, context.loop
    consumers, bodies = ConnectedConsumers(epoch), Bodies()

    def can_take(incarnation: int) -> bool:
        endpoint = consumers.get(incarnation)
        return endpoint is not None and has_room(endpoint)

    core = NonPersistentDispatcher(
        name,
        context.settings,
        topic=context.topic,
        epoch=epoch,
        now_ms=clock.monotonic_ms(),
        can_take=can_take,
    )
    counts, durability, no_log = SubscriptionStats(core, clock), MemoryOnly(), NoLog()
    turn = SubscriptionTurn(
        core, no_log, no_log, consumers, durability, counts, clock, loop, on_demand=lambda: None
    )

    def new_endpoint(session: Session, request: OpenConsumer, numbering: int) -> ConsumerEndpoint:
        encoder = DeliverEncoder(request.consumer_id, numbering)
        return ConsumerEndpoint(name, session, request, numbering, PassingSender(session, encoder, bodies))

    served = ServedSubscription(
        name, core, consumers, new_endpoint, durability, no_log, turn, counts, clock, loop
    )
    return PassingSubscription(served, core, bodies)
