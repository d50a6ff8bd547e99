"""Keeps the links of one client: one to each actor that it uses.

Actors are found by the names of topics and subscriptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from pulsar_ray.client.endpoint.last_words import LAST_WORDS
from pulsar_ray.client.endpoint.wake_poll import WakePoll
from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    Moved,
    NotConnected,
    PulsarException,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.lane.waiting import ensure_may_wait
from pulsar_ray.launch.connect import Connected, connect
from pulsar_ray.model.enums import InitialPosition, SubscriptionMode
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import Cluster, PartitionRoute, SubscriptionRequest, check_any_there
from pulsar_ray.transport.retry import until

# The tie is made at the first use, and refused after the end and in forked children.


class ClusterConnection:
    """Connects at the first use. Thread-safe.

    `connected` is a cluster that is there already; no other one is then looked for.
    """

    def __init__(self, options: ClientOptions, connected: Connected | None = None) -> None:
        self._options = options
        self._connected = connected
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._when_gone: list[Callable[[PulsarException], None]] = []
        self._is_gone = False
        if connected is not None:
            connected.cluster.when_gone(self._gone)
        self.is_closed = False

    def forked(self) -> None:
        """Take a new lock in a forked child, where another thread's would stay locked."""
        self._lock = threading.Lock()

    @property
    def is_usable(self) -> bool:
        """Whether the client is open, of this process, and its broker not gone.

        Looks whether this process has left the broker's Ray, and ends the client then, which runs the
        application's callbacks: call without a lock. The broker counts as there while nobody knows better.
        """
        if self.is_closed or self._is_gone or self._pid != os.getpid():
            return False
        connected = self._connected
        return connected is None or connected.cluster.is_reachable

    @property
    def is_connected(self) -> bool:
        """Whether it has a cluster, which it leaves by `release`."""
        return self._connected is not None

    def when_gone(self, notify: Callable[[PulsarException], None]) -> None:
        """Call `notify` once the broker is gone for good."""
        self._when_gone.append(notify)

    def _gone(self, error: PulsarException) -> None:
        self._is_gone = True
        for notify in self._when_gone:
            notify(error)

    @property
    def cluster(self) -> Cluster:
        """The cluster; connects at the first use.

        Raises AlreadyClosed, ForkedClient, or what connecting raises; NotAllowedError in a thread that must
        not wait, as a call of the cluster would.
        """
        ensure_may_wait("what asks the broker")
        if self.is_closed:
            raise AlreadyClosed("the client is closed")
        if os.getpid() != self._pid:
            raise ForkedClient
        with self._lock:
            if self._connected is None:
                options = self._options
                self._connected = connect(
                    options.service_url,
                    data_dir=options.data_dir,
                    config_file=options.config_file,
                    settings=options.settings,
                )
                self._connected.cluster.when_gone(self._gone)
            return self._connected.cluster

    @property
    def address(self) -> str:
        """The address that finds the same cluster from another process."""
        return self._connected.address if self._connected is not None else self._options.service_url

    def close(self) -> None:
        """Refuse `cluster` from now on; calls under way may use it until `release`."""
        self.is_closed = True

    def release(self, wait_s: float = 0.0) -> None:
        """Release the cluster, which others of this process may still use.

        Threads of this client that call the cluster give up, and are waited for so long.
        """
        with self._lock:
            connected, self._connected = self._connected, None
        if connected is None:
            return
        if self._pid == os.getpid():
            connected.cluster.end_calls(wait_s)
        self._when_gone.clear()
        connected.release()


FIND_TIMEOUT_S = 5.0
KEPT_UNUSED = 1_000
"""Links that were asked for last: they are kept though nobody uses them."""


class ActorLinks:
    """Lets producers and consumers of a client share links to actors. Thread-safe."""

    def __init__(self, connection: ClusterConnection, transport: str, operation_timeout_s: float) -> None:
        self._connection = connection
        self._transport = transport
        self.operation_timeout_s = operation_timeout_s
        self._client_id = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._by_address: dict[str, ActorLink] = {}
        """By the actor's address, the one that was asked for last at the end."""
        self._sweep_at = 2 * KEPT_UNUSED
        self._wake_poll = WakePoll(lambda: connection.cluster, self._client_id)
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop that later links live on; None for threads."""
        connection.when_gone(self._end)

    def __iter__(self) -> Iterator[ActorLink]:
        return iter(list(self._by_address.values()))

    @property
    def are_served(self) -> bool:
        """Whether anything is read from the links: not once their loop is closed."""
        return self.loop is None or not self.loop.is_closed()

    def forked(self) -> None:
        """Silence all links in a forked child."""
        self._lock = threading.Lock()
        self._wake_poll.forked()
        for link in self:
            link.forked()

    def deadline(self) -> float:
        """Set the deadline of an operation that starts now; connects first."""
        # Connecting may start a Ray and a broker, which has deadlines of its own.
        _ = self._connection.cluster
        return time.monotonic() + self.operation_timeout_s

    def resolve(self, name: TopicName, deadline: float, *, create: bool = True) -> list[PartitionRoute]:
        """List the partitions of a topic; some may be away.

        With `create` the topic is created if it may be. Raises TopicNotFound, WrongNode if all of them are
        away.
        """
        routes = self.all_routes(name, deadline, create=create)
        check_any_there(routes)
        return routes

    def all_routes(self, name: TopicName, deadline: float, *, create: bool = True) -> list[PartitionRoute]:
        """List the partitions as `resolve`, also if all are away."""
        return self._connection.cluster.resolve(name.full, create=create, timeout_s=_left(deadline))

    def partitions(self, name: TopicName, deadline: float) -> list[PartitionRoute]:
        """List the partitions that a topic has as `all_routes`; none is started.

        Raises TopicNotFound, WrongNode if all of them are away.
        """
        routes = self._connection.cluster.partitions(name.full, _left(deadline))
        check_any_there(routes)
        return routes

    def topics(self, namespace: str, deadline: float) -> list[tuple[str, int]]:
        """List (full name, partitions or 0) of a namespace's topics.

        Raises TopicNotFound for a missing namespace.
        """
        return self._connection.cluster.topics(namespace, _left(deadline))

    def ask_registry(self, method: str, *arguments: Any, deadline: float) -> Any:
        """A call about the schemas of topics, repeated while the controller restarts."""
        call = "call_part", "schemas", method, *arguments
        return self._connection.cluster.controller(*call, timeout_s=_left(deadline))

    def keeps_nothing(self, name: TopicName, deadline: float) -> bool:
        """Whether a topic has neither a durable subscription nor retention.

        False if its partitions do not say; none of them is started.
        """
        cluster = self._connection.cluster
        for route in self.partitions(name, deadline):
            described = cluster.stats(route.address).get("subscriptions")
            if described is None or any(one["durable"] for one in described):
                return False
        asked = "policies", name.partitioned_full, "retention"
        (retention,) = cluster.controller("call_part", "administration", *asked, timeout_s=_left(deadline))
        return not all(retention.value.values())

    def to_partition(self, route: PartitionRoute) -> ActorLink:
        """The link to a partition's actor."""

        def find() -> str:
            found = self._connection.cluster.resolve(
                route.topic, create=False, was_open=True, timeout_s=FIND_TIMEOUT_S
            )
            check_any_there(found)
            return route.address

        return self._link(route.address, find, pushes=False)

    def to_dispatcher(
        self, route: PartitionRoute, options: ConsumerOptions, subscription: str, deadline: float
    ) -> ActorLink:
        """The link to a subscription's dispatcher on a partition.

        The dispatcher is started if it does not run.
        """
        durable = options.subscription_mode == SubscriptionMode.Durable
        initial = "earliest" if options.initial_position == InitialPosition.Earliest else "latest"
        request = SubscriptionRequest(
            route.topic, subscription, durable, initial, options.subscription_properties or {}, create=True
        )
        again = SubscriptionRequest(
            route.topic, subscription, durable, initial, {}, create=False, was_open=True
        )
        address = self._connection.cluster.dispatcher(request, _left(deadline))

        def find() -> str:
            return self._connection.cluster.dispatcher(again, FIND_TIMEOUT_S)

        return self._link(address, find, pushes=True)

    def replace_dispatcher(self, link: ActorLink) -> None:
        """Have another dispatcher take the place of one that does not serve its subscription.

        It died before it had registered that, or was not allowed to.
        """
        self._connection.cluster.dispatcher_gone(link.address)

    def undo_subscription(self, link: ActorLink, incarnation: int, deadline: float) -> None:
        """Delete a durable subscription if it was created for this consumer alone, which leaves.

        Repeated while its dispatcher starts. Raises Timeout. Nothing is to be done where no dispatcher runs:
        it was ended because it could not create the subscription, and only who uses that starts another.
        """
        cluster = self._connection.cluster

        def undo(left_s: float) -> None:
            with contextlib.suppress(Moved, SubscriptionNotFound, TopicNotFound):
                cluster.call(link.address, "call", "undo", {"incarnation": incarnation}, timeout_s=left_s)

        until(_left(deadline), undo, again=(NotConnected, ServiceUnitNotReady))
        cluster.dispatcher_gone(link.address)

    def forget_dispatchers(self, links: list[ActorLink]) -> None:
        """Drop the links to a deleted subscription's dispatchers.

        The names of the dispatchers are free when this returns. Links stay that others use who have
        subscribed anew meanwhile.
        """
        with self._lock:
            gone = [address for address, link in self._by_address.items() if link in links]
            for address in gone:
                if not self._by_address[address].has_endpoints:
                    self._by_address.pop(address).close()
        for address in gone:
            self._connection.cluster.dispatcher_gone(address, was_deleted=True)

    def _link(self, address: str, find: Callable[[], str], *, pushes: bool) -> ActorLink:
        with self._lock:
            link = self._by_address.pop(address, None)
            unused = self._take_unused()
            if link is None or link.is_closed:
                LAST_WORDS.know(self)
                link = ActorLink(
                    self._connection.cluster,
                    address,
                    find,
                    self._client_id,
                    self._transport,
                    pushes=pushes,
                    loop=self.loop,
                    # A consumer waits for what others publish; a producer knows itself when it publishes.
                    on_parked=self._wake_poll.add if pushes else None,
                )
            self._by_address[address] = link
        for gone in unused:
            gone.close()
            self._connection.cluster.forget(gone.address)
        return link

    def _take_unused(self) -> list[ActorLink]:
        """Take out links that nobody has used for long, once there are many.

        Called with the lock held. A link that was just handed out may have no endpoint yet: the newest stay.
        """
        links = self._by_address
        if len(links) < self._sweep_at:
            return []
        unused = [link for link in list(links.values())[:-KEPT_UNUSED] if link.is_unused]
        for link in unused:
            del links[link.address]
        self._sweep_at = 2 * max(len(links), KEPT_UNUSED)
        return unused

    def close(self) -> None:
        """Drop all carriers; the sessions at the actors end with them."""
        with self._lock:
            links, self._by_address = self._by_address, {}
        for link in links.values():
            if not self.are_served:
                # No close was answered on a loop that is closed.
                link.leave()
            link.close()

    def _end(self, error: PulsarException) -> None:
        """End all links: the broker is gone for good."""
        with self._lock:
            links = list(self._by_address.values())
        for link in links:
            link.end(error)


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
