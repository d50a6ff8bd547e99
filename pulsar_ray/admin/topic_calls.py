"""How `Admin.topics` reaches partitions and dispatchers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pulsar_ray.errors import (
    Moved,
    NotConnected,
    PulsarException,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
)
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import dispatcher_name
from pulsar_ray.transport.cluster import Cluster, PartitionRoute, SubscriptionRequest, check_any_there
from pulsar_ray.transport.retry import until


class Broker(Protocol):
    """The connection to a broker that the calls about topics go over: an Admin."""

    @property
    def cluster(self) -> Cluster:
        """The connected cluster. Raises AlreadyClosed, ForkedClient."""

    @property
    def operation_timeout_s(self) -> float: ...

    def ask(
        self, method: str, *arguments: Any, was_done: Callable[[PulsarException], bool] = lambda _: False
    ) -> Any:
        """Call the controller, again while it restarts."""


ANSWER_S = 3.0
"""How long an actor is waited for before somebody looks whether it stands still."""


def _on(route: PartitionRoute) -> str:
    return f" on {route.host}" if route.host else ""


class TopicCalls:
    """Calls to the partitions of topics and to the dispatchers of their subscriptions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def all_routes(self, topic: str) -> list[PartitionRoute]:
        """The partitions of a topic, or of one partition itself; none is started.

        Raises TopicNotFound, InvalidTopicName.
        """
        name = TopicName.parse(topic).full
        return self._broker.cluster.partitions(name, self.timeout_s)

    def routes(self, topic: str) -> list[PartitionRoute]:
        """The routes of all partitions, started, for calls that must reach each of them.

        Raises WrongNode if one is away.
        """
        name = TopicName.parse(topic).full
        routes = self._broker.cluster.resolve(name, create=False, timeout_s=self.timeout_s)
        for route in routes:
            check_any_there([route])
        return routes

    def serving_routes(self, topic: str) -> list[PartitionRoute]:
        """Return what `routes` does, once each partition has answered that it serves.

        For changes that are made on all or on none. Raises WrongNode, ServiceUnitNotReady.
        """
        routes = self.routes(topic)
        for route in routes:
            self.serving_stats(route)
        return routes

    def routes_there(self, topic: str) -> list[PartitionRoute]:
        """The routes of the partitions that are not away. Raises WrongNode if all are."""
        routes = self.all_routes(topic)
        check_any_there(routes)
        return [route for route in routes if not route.away]

    def _check_there(self, route: PartitionRoute) -> None:
        """Raise WrongNode if the node of a partition, whose actor nobody knows, is away."""
        check_any_there(self._broker.cluster.resolve(route.topic, create=False, timeout_s=self.timeout_s))

    def ask_partition(self, route: PartitionRoute, method: str, **arguments: Any) -> Any:
        """A control call of a partition, repeated while it restarts.

        Raises WrongNode if it is away.
        """

        def ask(left_s: float) -> Any:
            call = partial(self._broker.cluster.call, route.address, "call", method, arguments)
            try:
                return call(timeout_s=left_s)
            except Moved:
                # It sleeps, and is started by this look: at once, before it may fall asleep again.
                self._check_there(route)
                return call(timeout_s=left_s)

        again = (Moved, NotConnected, ServiceUnitNotReady)
        return until(self.timeout_s, ask, again=again)

    def wake_dispatcher(self, route: PartitionRoute, subscription: str) -> str:
        """The address of a durable subscription's dispatcher, which is started if it does not run."""
        request = SubscriptionRequest(route.topic, subscription, True, "latest", create=False)
        return self._broker.cluster.dispatcher(request, self.timeout_s)

    def ask_dispatcher(self, route: PartitionRoute, subscription: str, method: str, **arguments: Any) -> Any:
        """A control call of a durable subscription, repeated while its dispatcher starts or restarts.

        Raises SubscriptionNotFound, with no dispatcher left behind.
        """
        cluster, timeout_s = self._broker.cluster, self.timeout_s

        def ask(left_s: float) -> Any:
            address = self.wake_dispatcher(route, subscription)
            return cluster.call(address, "call", method, arguments, timeout_s=left_s)

        try:
            return until(timeout_s, ask, again=(Moved, NotConnected, ServiceUnitNotReady))
        except SubscriptionNotFound:
            self.forget_dispatcher(route, subscription)
            raise

    def ask_running(self, route: PartitionRoute, subscription: str, method: str) -> Any:
        """Answer of a durable subscription's dispatcher; None if none runs, or it does not answer."""
        address = dispatcher_name(route.topic, subscription, durable=True)
        try:
            return self._broker.cluster.call(address, "call", method, {}, timeout_s=self.timeout_s)
        except (Moved, NotConnected, ServiceUnitNotReady, SubscriptionNotFound, Timeout):
            return None

    def partition_stats(self, route: PartitionRoute, timeout_s: float) -> dict[str, Any]:
        """A partition's counters, from its files if it sleeps; waits while it starts.

        A refusal is answered with, too; one whose process stands still is not waited for. Raises WrongNode.
        """

        def ask(left_s: float) -> dict[str, Any]:
            try:
                stats = self._broker.cluster.stats(route.address, min(left_s, ANSWER_S))
            except Timeout:
                if self.ask_controller("is_silent", route.address):
                    return {"refused": f"its process stands still and does not answer{_on(route)}"}
                raise
            except Moved:
                if (sleeping := self.sleeping_stats(route)) is not None:
                    return sleeping
                self._check_there(route)
                raise
            if "pid" not in stats and "refused" not in stats:
                raise ServiceUnitNotReady(f"{route.address} is starting{_on(route)}")
            return stats

        # An actor that is just starting answers late, and asking again does no harm.
        again = (ServiceUnitNotReady, NotConnected, Timeout)
        stats: dict[str, Any] = until(timeout_s, ask, again=again)
        return stats

    def sleeping_stats(self, route: PartitionRoute) -> dict[str, Any] | None:
        """The stats of a partition that sleeps, which is not woken; None if it runs."""
        stats: dict[str, Any] | None = self.ask_controller("describe_sleeping", route.topic)
        return stats

    def last_message(self, route: PartitionRoute) -> dict[str, Any]:
        """The `position` of a partition's newest entry, and the `batch_size` of that; wakes nobody."""
        sleeping = self.sleeping_stats(route)
        if sleeping is not None:
            return {"position": sleeping["lastPosition"], "batch_size": sleeping["lastBatchSize"]}
        last: dict[str, Any] = self.ask_partition(route, "last_message")
        return last

    def serving_stats(self, route: PartitionRoute) -> dict[str, Any]:
        """A partition's counters. Raises ServiceUnitNotReady if it cannot serve."""
        partition = self.partition_stats(route, self.timeout_s)
        if "refused" in partition:
            raise ServiceUnitNotReady(f"{route.topic} cannot be served{_on(route)}: {partition['refused']}")
        return partition

    def forget_dispatcher(self, route: PartitionRoute, subscription: str) -> None:
        """End the dispatcher of a deleted durable subscription.

        A new one then starts afresh.
        """
        self._broker.cluster.dispatcher_gone(
            dispatcher_name(route.topic, subscription, durable=True), was_deleted=True
        )

    def ask_controller(
        self, method: str, *arguments: Any, was_done: Callable[[PulsarException], bool] = lambda _: False
    ) -> Any:
        """Call the controller, again while it restarts; `was_done` as for `until`."""
        return self._broker.ask(method, *arguments, was_done=was_done)

    @property
    def timeout_s(self) -> float:
        """How long a call may take."""
        return self._broker.operation_timeout_s

    def running_stats(self, topic: str, subscription: str, *, durable: bool) -> dict[str, Any] | None:
        """A dispatcher's counters of its subscriptions, by name.

        None if it does not run just now, nothing of one that does not answer.
        """
        try:
            stats = self._broker.cluster.stats(dispatcher_name(topic, subscription, durable), ANSWER_S)
        except (Moved, NotConnected):
            return None
        except Timeout:
            return {}
        found: dict[str, Any] = stats.get("subscriptions", {})
        return found
