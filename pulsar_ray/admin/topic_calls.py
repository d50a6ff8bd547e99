"""How `Admin.topics` reaches partitions and dispatchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsar_ray.errors import (
    Moved,
    NotConnected,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
)
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import dispatcher_name
from pulsar_ray.transport.cluster import PartitionRoute, SubscriptionRequest, check_any_there
from pulsar_ray.transport.retry import until

if TYPE_CHECKING:
    from pulsar_ray.admin.admin import Admin


class TopicCalls:
    """Base of what `Topics` is made of."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def _all_routes(self, topic: str) -> list[PartitionRoute]:
        """The partitions of a topic, or of one partition itself, away or not.

        Raises TopicNotFound, InvalidTopicName.
        """
        cluster, timeout_s = self._admin.cluster, self._admin.operation_timeout_s
        routes: list[PartitionRoute] = cluster.resolve(
            TopicName.parse(topic).full, create=False, timeout_s=timeout_s
        )
        return routes

    def _routes(self, topic: str) -> list[PartitionRoute]:
        """As `_all_routes`, for what has to be done at all of them. Raises WrongNode if one is away."""
        routes = self._all_routes(topic)
        for route in routes:
            check_any_there([route])
        return routes

    def _routes_there(self, topic: str) -> list[PartitionRoute]:
        """As `_all_routes`, without those that are away. Raises WrongNode if all are."""
        routes = self._all_routes(topic)
        check_any_there(routes)
        return [route for route in routes if not route.away]

    def _check_there(self, route: PartitionRoute) -> None:
        """Raise WrongNode if the node of a partition, whose actor nobody knows, is away."""
        check_any_there(
            self._admin.cluster.resolve(route.topic, create=False, timeout_s=self._admin.operation_timeout_s)
        )

    def _ask_partition(self, route: PartitionRoute, method: str, **arguments: Any) -> Any:
        """A control call of a partition, repeated while it restarts. Raises WrongNode if it is away."""

        def ask(left_s: float) -> Any:
            try:
                return self._admin.cluster.call(route.address, "call", method, arguments, timeout_s=left_s)
            except Moved:
                self._check_there(route)
                raise

        again = (Moved, NotConnected, ServiceUnitNotReady)
        return until(self._admin.operation_timeout_s, ask, again=again)

    def _wake_dispatcher(self, route: PartitionRoute, subscription: str) -> str:
        """The address of a durable subscription's dispatcher, which is started if it does not run."""
        request = SubscriptionRequest(route.topic, subscription, True, "latest", create=False)
        address: str = self._admin.cluster.dispatcher(request, self._admin.operation_timeout_s)
        return address

    def _ask_dispatcher(self, route: PartitionRoute, subscription: str, method: str, **arguments: Any) -> Any:
        """A control call of a durable subscription, repeated while its dispatcher starts or restarts.

        Raises SubscriptionNotFound, with no dispatcher left behind.
        """
        cluster, timeout_s = self._admin.cluster, self._admin.operation_timeout_s

        def ask(left_s: float) -> Any:
            address = self._wake_dispatcher(route, subscription)
            return cluster.call(address, "call", method, arguments, timeout_s=left_s)

        try:
            return until(timeout_s, ask, again=(Moved, NotConnected, ServiceUnitNotReady))
        except SubscriptionNotFound:
            cluster.dispatcher_gone(dispatcher_name(route.topic, subscription, durable=True))
            raise

    def _partition_stats(self, route: PartitionRoute, timeout_s: float) -> dict[str, Any]:
        """A partition's counters once it serves; a refusal is answered with, too. Raises WrongNode."""

        def ask(_left_s: float) -> dict[str, Any]:
            try:
                stats: dict[str, Any] = self._admin.cluster.stats(route.address)
            except Moved:
                self._check_there(route)
                raise
            if "pid" not in stats and "refused" not in stats:
                raise ServiceUnitNotReady(f"{route.address} is starting")
            return stats

        # An actor that is just starting answers late, and asking again does no harm.
        again = (ServiceUnitNotReady, NotConnected, Timeout)
        stats: dict[str, Any] = until(timeout_s, ask, again=again)
        return stats

    def _serving_stats(self, route: PartitionRoute) -> dict[str, Any]:
        """A partition's counters. Raises ServiceUnitNotReady if it cannot serve."""
        partition = self._partition_stats(route, self._admin.operation_timeout_s)
        if "refused" in partition:
            raise ServiceUnitNotReady(f"{route.topic} cannot be served: {partition['refused']}")
        return partition

    def _running_stats(self, topic: str, subscription: str, *, durable: bool) -> dict[str, Any]:
        """What a dispatcher tells of its subscriptions, by name; nothing if it does not run just now."""
        try:
            stats = self._admin.cluster.stats(dispatcher_name(topic, subscription, durable))
        except (Moved, NotConnected, Timeout):
            return {}
        found: dict[str, Any] = stats.get("subscriptions", {})
        return found
