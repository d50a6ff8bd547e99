"""The controller's answers to administrators, given in this process."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import PartitionRoute

STORE = "stub"


class StubController:
    """The methods of the Controller that concern topics.

    `start` starts the actors of partitions, `delete` ends those of a topic.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        start: Callable[[list[PartitionRow]], list[PartitionRoute]],
        delete: Callable[[str], None],
    ) -> None:
        self._topics = topics
        self._start = start
        self._delete = delete

    def create_topic(self, topic: str, partitions: int) -> None:
        """As Controller.create_topic."""
        self._topics.create(TopicName.parse(topic), partitions, lambda: [STORE])

    def prepare_partitions(self, topic: str, partitions: int) -> list[tuple[str, int, str, str]]:
        """As Controller.prepare_partitions."""
        rows = self._topics.prepare_partitions(TopicName.parse(topic), partitions, lambda: [STORE])
        return [(route.topic, route.partition, route.address, route.away) for route in self._start(rows)]

    def add_partitions(self, topic: str, partitions: int) -> None:
        """As Controller.add_partitions."""
        self._topics.add_partitions(TopicName.parse(topic), partitions)

    def delete_topic(self, topic: str, force: bool) -> None:
        """As Controller.delete_topic; nobody is connected, or it does not matter."""
        self._delete(topic)

    def list_topics(self, namespace: str, include_system: bool = False) -> list[tuple[str, int]]:
        """As Controller.list_topics."""
        return self._topics.topics(namespace)
