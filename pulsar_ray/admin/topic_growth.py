"""`Admin.topics`: giving a partitioned topic more partitions."""

from __future__ import annotations

from typing import Any

from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.topic_name import MAX_PARTITIONS, TopicName
from pulsar_ray.transport.cluster import PartitionRoute


class TopicGrowth:
    """Growing topics. Shrinking is not possible: messages lie in every partition."""

    def __init__(self, calls: TopicCalls) -> None:
        self._calls = calls

    def grow(self, topic: str, partitions: int) -> None:
        """Prepare the new partitions, give them the subscriptions of the present ones, and add them."""
        check_partitions(partitions)
        name = TopicName.parse(topic)
        present: list[PartitionRoute] = []
        if name.is_persistent and not name.is_partition:
            present = self._calls.routes_there(name.full)
        added = [
            PartitionRoute(*row)
            for row in self._calls.ask_controller("prepare_partitions", name.full, partitions)
        ]
        self._copy_subscriptions(present, added)
        self._calls.ask_controller("add_partitions", name.full, partitions)
        # A consumer that subscribed between the two calls knew the present partitions only.
        self._copy_subscriptions(present, added)

    def _copy_subscriptions(self, present: list[PartitionRoute], added: list[PartitionRoute]) -> None:
        for name, properties in self.common_subscriptions(present).items():
            for route in added:
                self._calls.ask_partition(
                    route,
                    "register_subscription",
                    name=name,
                    durable=True,
                    initial="earliest",
                    properties=properties,
                    create=True,
                )

    def common_subscriptions(self, routes: list[PartitionRoute]) -> dict[str, dict[str, str]]:
        """The properties of the durable subscriptions that all of these partitions have, by name.

        One that only some of them have belongs to those: nobody would read it on another.
        """
        if not routes:
            return {}
        first, *others = [self._durable_subscriptions(route) for route in routes]
        return {name: found for name, found in first.items() if all(name in other for other in others)}

    def _durable_subscriptions(self, route: PartitionRoute) -> dict[str, dict[str, Any]]:
        known = self._calls.serving_stats(route)["subscriptions"]
        return {one["name"]: one["subscriptionProperties"] for one in known if one["durable"]}


def check_partitions(partitions: int) -> None:
    """Raise InvalidConfiguration unless it is a number of partitions."""
    if type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidConfiguration(f"partitions={partitions!r}: give an int in 1..{MAX_PARTITIONS}")
