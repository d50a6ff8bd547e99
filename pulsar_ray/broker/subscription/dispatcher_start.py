"""Starting the dispatcher that a topic needs: of stored entries, or of entries that pass by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.subscription.dispatcher_server import DispatcherServer
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.log.partition_follower import PartitionFollower
from pulsar_ray.broker.subscription.non_persistent.non_persistent_dispatcher import (
    NonPersistentDispatcherServer,
)
from pulsar_ray.broker.subscription.non_persistent.push_follower import PushFollower
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.model.topic_name import TopicName
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
    """A dispatcher that serves; runs on its owner loop. If it raises, it may be called again."""
    loop = asyncio.get_running_loop()
    server: DispatcherServer
    if TopicName.parse(request.topic).is_persistent:
        follower = PartitionFollower(cluster, request.topic, partition_address, loop)
        server = DispatcherServer(request, follower, LogView(), settings, clock, loop, host, on_fatal)
    else:
        name = request.subscription if request.durable else ""
        pushed = PushFollower(cluster, request.topic, partition_address, loop, name)
        server = NonPersistentDispatcherServer(request, pushed, settings, clock, loop, host, on_fatal)
    try:
        await host.start()
        await server.start()
    except Exception:
        await server.give_up()
        raise
    except BaseException:
        server.leave()
        raise
    return server
