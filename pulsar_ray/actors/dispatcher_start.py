"""Starting the dispatcher that a topic needs: of stored entries, or of entries that pass by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsar_ray.actors.dispatcher_server import DispatcherServer
from pulsar_ray.actors.log_feed import LogFeed
from pulsar_ray.actors.non_persistent_dispatcher import NonPersistentDispatcherServer
from pulsar_ray.actors.partition_follower import PartitionFollower
from pulsar_ray.actors.push_follower import PushFollower
from pulsar_ray.actors.session_host import SessionHost
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.session.requests import Advanced, Pushed
from pulsar_ray.transport.cluster import Cluster, SubscriptionRequest


async def start_dispatcher(
    request: SubscriptionRequest,
    cluster: Cluster,
    partition_address: str,
    settings: Settings,
    clock: Clock,
    host: SessionHost,
    on_fatal: Callable[[BaseException], None],
) -> DispatcherServer:
    """A dispatcher that serves; runs on its owner loop."""
    make = _stored if TopicName.parse(request.topic).is_persistent else _passing
    server = make(request, cluster, partition_address, settings, clock, host, on_fatal)
    try:
        await host.start()
        await server.start()
    except BaseException:
        server.leave()
        raise
    return server


def _stored(
    request: SubscriptionRequest,
    cluster: Cluster,
    address: str,
    settings: Settings,
    clock: Clock,
    host: SessionHost,
    on_fatal: Callable[[BaseException], None],
) -> DispatcherServer:
    servers: list[DispatcherServer] = []
    loop = asyncio.get_running_loop()

    def advanced(packet: Advanced) -> None:
        servers[0].advanced(packet)

    follower = PartitionFollower(cluster, request.topic, address, loop, advanced)
    servers.append(DispatcherServer(request, follower, LogFeed(), settings, clock, loop, host, on_fatal))
    return servers[0]


def _passing(
    request: SubscriptionRequest,
    cluster: Cluster,
    address: str,
    settings: Settings,
    clock: Clock,
    host: SessionHost,
    on_fatal: Callable[[BaseException], None],
) -> DispatcherServer:
    servers: list[NonPersistentDispatcherServer] = []
    loop = asyncio.get_running_loop()

    def pushed(packet: Pushed, body: memoryview) -> None:
        servers[0].pushed(packet, body)

    def lost(messages: int) -> None:
        servers[0].lost(messages)

    name = request.subscription if request.durable else ""
    follower = PushFollower(cluster, request.topic, address, loop, name, pushed, lost)
    servers.append(NonPersistentDispatcherServer(request, follower, settings, clock, loop, host, on_fatal))
    return servers[0]
