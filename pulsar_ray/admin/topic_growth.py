"""`Admin.topics`: giving a partitioned topic more partitions."""

from __future__ import annotations

from typing import Any

from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.topic_name import MAX_PARTITIONS, TopicName
from pulsar_ray.transport.cluster import PartitionRoute


class TopicGrowth(TopicCalls):
    """Growing topics. Shrinking is not possible: messages lie in every partition."""

    def update_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Let a partitioned topic have so many partitions, more than it has now.

        Durable when it returns. Every durable subscription that all present partitions have (but for those
        that are away) is created on the new ones, from their beginning, before anybody can publish to them.
        Connected producers and consumers find them within `auto_update_partitions_interval_seconds`. From
        then on a key may belong to
        another partition, so that its order holds before and after, and not across (Pulsar's
        `update-partitioned-topic`). What an attempt that failed left undone the next one finishes.

        Raises TopicNotFound, NotAllowedError unless the topic is partitioned and would grow,
        InvalidConfiguration unless the number is in 1..10000.
        """
        check_partitions(partitions)
        name = TopicName.parse(topic)
        present: list[PartitionRoute] = []
        if name.is_persistent and not name.is_partition:
            present = self._routes_there(name.full)
        added = [PartitionRoute(*row) for row in self._admin.ask("prepare_partitions", name.full, partitions)]
        self._copy_subscriptions(present, added)
        self._admin.ask("add_partitions", name.full, partitions)
        # Who subscribed between the two calls knew the present partitions only.
        self._copy_subscriptions(present, added)

    def _copy_subscriptions(self, present: list[PartitionRoute], added: list[PartitionRoute]) -> None:
        if not present:
            return
        # One that only some partitions have belongs to those: nobody would read it on another.
        first, *others = [self._durable_subscriptions(route) for route in present]
        for name, properties in first.items():
            if not all(name in registered for registered in others):
                continue
            for route in added:
                self._ask_partition(
                    route,
                    "register_subscription",
                    name=name,
                    durable=True,
                    initial="earliest",
                    properties=properties,
                    create=True,
                )

    def _durable_subscriptions(self, route: PartitionRoute) -> dict[str, dict[str, Any]]:
        known = self._serving_stats(route)["subscriptions"]
        return {one["name"]: one["subscriptionProperties"] for one in known if one["durable"]}


def check_partitions(partitions: int) -> None:
    """Raise InvalidConfiguration unless it is a number of partitions."""
    if type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidConfiguration(f"partitions={partitions!r}: give an int in 1..{MAX_PARTITIONS}")
