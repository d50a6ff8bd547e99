"""Starting the dispatcher that a topic needs, with all its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.shipping_link import shipping_link
from pulsar_ray.broker.subscription.consumers.consumer_calls import TopicAdmission
from pulsar_ray.broker.subscription.dispatcher_server import DispatcherServer
from pulsar_ray.broker.subscription.dispatcher_subscriptions import DispatcherSubscriptions
from pulsar_ray.broker.subscription.log.partition_link import PartitionLink
from pulsar_ray.broker.subscription.stored_subscriptions import StoredSubscriptions
from pulsar_ray.broker.subscription.subscription_parts import DispatcherContext
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import Cluster, SubscriptionRequest


def new_dispatcher(
    request: SubscriptionRequest,
    cluster: Cluster,
    partition_address: str,
    in_force: PoliciesInForce,
    clock: Clock,
    host: SessionHost,
    on_fatal: Callable[[BaseException], None],
) -> DispatcherServer:
    """Return a dispatcher with all its parts, for `start_dispatcher`; runs on its owner loop."""
    loop = asyncio.get_running_loop()
    settings = DispatchSettings.of(in_force.settings, are_current=in_force.are_current)
    context = DispatcherContext(
        request.topic,
        settings,
        clock,
        cluster,
        loop,
        DiskThread(loop, "reader"),
        DiskThread(loop, "cursor"),
        lambda number, prefix: shipping_link(in_force.settings, number, prefix, loop),
        on_fatal,
    )
    partition = PartitionLink(cluster, request.topic, partition_address, loop)
    subscriptions: DispatcherSubscriptions
    if TopicName.parse(request.topic).is_persistent:
        subscriptions = StoredSubscriptions(request, context, partition)
    else:
        from pulsar_ray.broker.subscription.non_persistent.passing_subscriptions import (  # noqa: PLC0415 - rare
            PassingSubscriptions,
        )

        is_admitted = in_force.is_restarted or not in_force.are_current
        subscriptions = PassingSubscriptions(request, context, partition, is_admitted=is_admitted)
    admission = TopicAdmission(settings, partition, subscriptions.served, request)
    disks = (context.reader, context.cursor_disk)
    return DispatcherServer(request, subscriptions, in_force, settings, admission, host, disks=disks)


async def start_dispatcher(server: DispatcherServer, host: SessionHost) -> None:
    """Let a new dispatcher serve.

    If this raises, it has given up everything, and a new one may be started.
    """
    try:
        await host.start()
        await server.start()
    except Exception:
        await server.give_up()
        raise
    except BaseException:
        server.leave()
        raise
