"""`Admin.topics`: what can be done to topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsar_ray.admin.topic_stats import partition_stats, refused_cursor, sum_of_partitions
from pulsar_ray.errors import (
    InvalidConfiguration,
    Moved,
    NotAllowedError,
    NotConnected,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import SubscriptionRequest
from pulsar_ray.transport.names import dispatcher_name
from pulsar_ray.transport.retry import until

if TYPE_CHECKING:
    from pulsar_ray.admin.admin import Admin


class Topics:
    """Topics of a broker. Names may be short: `t` is persistent://public/default/t."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def create_topic(self, topic: str) -> None:
        """Create a topic without partitions. Raises NotAllowedError if it exists, InvalidTopicName."""
        self._admin.ask("create_topic", TopicName.parse(topic).full, 0)

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with so many partitions.

        Raises NotAllowedError if it exists, InvalidTopicName, InvalidConfiguration for fewer than one.
        """
        if type(partitions) is not int or partitions < 1:
            raise InvalidConfiguration(f"partitions={partitions!r}: give an int of at least 1")
        self._admin.ask("create_topic", TopicName.parse(topic).full, partitions)

    def delete(self, topic: str, force: bool = False) -> None:
        """Delete a topic with all its partitions, subscriptions and messages.

        Raises TopicNotFound, and NotAllowedError while producers or consumers are connected, unless forced.
        """
        self._admin.ask("delete_topic", TopicName.parse(topic).full, force)

    def create_subscription(self, topic: str, subscription: str) -> None:
        """Create a durable subscription at the earliest message; from now on the topic keeps all for it.

        No dispatcher is started for it. On a partitioned topic it is created on each partition. Raises
        TopicNotFound, InvalidConfiguration for an empty name, NotAllowedError if it exists.
        """
        if not subscription:
            raise InvalidConfiguration("the subscription's name is empty: give one")
        cluster, timeout_s = self._admin.cluster, self._admin.operation_timeout_s
        routes = cluster.resolve(TopicName.parse(topic).full, create=False, timeout_s=timeout_s)
        for route in routes:
            registered = self._actor_stats(route.address)["subscriptions"]
            if any(one["name"] == subscription and one["durable"] for one in registered):
                raise NotAllowedError(f"Subscription {subscription!r} already exists for topic {topic}")
        arguments = {
            "name": subscription,
            "durable": True,
            "initial": "earliest",
            "properties": {},
            "create": True,
        }
        for route in routes:
            call = ("call", "register_subscription", arguments)
            cluster.call_again(route.address, *call, timeout_s=timeout_s)

    def list(self, namespace: str = "public/default") -> list[str]:
        """Full names of the topics of a namespace, sorted; a partitioned topic counts once."""
        return sorted(self.partitions(namespace))

    def partitions(self, namespace: str = "public/default") -> dict[str, int]:
        """How many partitions each topic of a namespace has; 0 for one that is not partitioned."""
        tenant, _, name = namespace.partition("/")
        # Checks the namespace's name with the rules, and the error, of topic names.
        TopicName.parse(f"persistent://{tenant}/{name}/any")
        return {name: count for name, count in self._admin.ask("list_topics", namespace)}  # noqa: C416

    def get_partitions(self, topic: str) -> int:
        """The number of partitions; 0 for a topic that is not partitioned. Raises TopicNotFound."""
        name = TopicName.parse(topic)
        count = self.partitions(f"{name.tenant}/{name.namespace}").get(name.full)
        if count is None:
            raise TopicNotFound(f"the topic {name.full} does not exist")
        return count

    def stats(self, topic: str, *, subscriptions: bool = True) -> dict[str, Any]:
        """Counters, producers, subscriptions and consumers, with Pulsar's field names.

        Of a partitioned topic the sums, and each partition's own under `partitions`. Counters start at 0 with
        the actor that counts; backlogs count entries. Without `subscriptions` no sleeping dispatcher is
        woken to tell of its own. Raises TopicNotFound, never creates a topic.
        """
        name = TopicName.parse(topic)
        timeout_s = self._admin.operation_timeout_s
        routes = self._admin.cluster.resolve(name.full, create=False, timeout_s=timeout_s)
        found = {route.topic: self._partition(route.topic, route.address, subscriptions) for route in routes}
        if name.full in found:
            return found[name.full]
        return {**sum_of_partitions(list(found.values())), "partitions": found}

    def _partition(self, topic: str, address: str, subscriptions: bool) -> dict[str, Any]:
        partition = self._actor_stats(address)
        if not subscriptions:
            return partition_stats(partition, {}, {})
        cursors: dict[str, dict[str, Any]] = {}
        for subscription in partition.get("subscriptions", ()):
            if subscription["durable"]:
                cursors.update(self._durable(topic, subscription["name"]))
        return partition_stats(partition, cursors, self._readers(topic))

    def _durable(self, topic: str, subscription: str) -> dict[str, Any]:
        """The subscription's stats by its name; its dispatcher is started if it sleeps."""
        request = SubscriptionRequest(topic, subscription, True, "latest", create=False)
        try:
            address = self._admin.cluster.dispatcher(request, self._admin.operation_timeout_s)
            stats = self._actor_stats(address, wanted="subscriptions")
        except SubscriptionNotFound:
            # Removed meanwhile.
            return {}
        if "refused" in stats:
            return {subscription: refused_cursor(stats["refused"])}
        found: dict[str, Any] = stats["subscriptions"]
        return found

    def _readers(self, topic: str) -> dict[str, Any]:
        """The non-durable cursors of a partition, if it has any."""
        try:
            stats = self._admin.cluster.stats(dispatcher_name(topic, "", durable=False))
        except (Moved, NotConnected):
            return {}
        found: dict[str, Any] = stats.get("subscriptions", {})
        return found

    def _actor_stats(self, address: str, wanted: str = "pid") -> dict[str, Any]:
        """An actor's counters once it serves; a refusal is answered with, too."""

        def ask(_left_s: float) -> dict[str, Any]:
            stats: dict[str, Any] = self._admin.cluster.stats(address)
            if wanted not in stats and "refused" not in stats:
                raise ServiceUnitNotReady(f"{address} is starting")
            return stats

        # An actor that is just starting answers late, and asking again does no harm.
        again = (ServiceUnitNotReady, NotConnected, Timeout)
        return until(self._admin.operation_timeout_s, ask, again=again)
