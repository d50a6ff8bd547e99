"""`Admin.topics`: what can be done to topics."""

from __future__ import annotations

from pulsar_ray.admin.topic_growth import TopicGrowth, check_partitions
from pulsar_ray.admin.topic_inspection import TopicInspection
from pulsar_ray.admin.topic_keys import TopicKeys
from pulsar_ray.admin.topic_subscriptions import TopicSubscriptions
from pulsar_ray.client.options.checks import check_flag, check_text
from pulsar_ray.errors import InvalidTopicName, NotAllowedError, PulsarException, TopicNotFound
from pulsar_ray.model.topic_name import TopicName, is_namespace


class Topics(TopicGrowth, TopicInspection, TopicKeys, TopicSubscriptions):
    """Topics of a broker. Names may be short: `t` is persistent://public/default/t."""

    def create_topic(self, topic: str) -> None:
        """Create a topic without partitions. Raises NotAllowedError if it exists, InvalidTopicName."""
        self._create(TopicName.parse(topic), 0)

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with so many partitions.

        Raises NotAllowedError if it exists, InvalidTopicName, InvalidConfiguration unless it is in 1..10000.
        """
        check_partitions(partitions)
        self._create(TopicName.parse(topic), partitions)

    def _create(self, name: TopicName, partitions: int) -> None:
        def is_there(refused: PulsarException) -> bool:
            namespace = f"{name.tenant}/{name.namespace}"
            return isinstance(refused, NotAllowedError) and (
                self.partitions(namespace).get(name.full) == partitions
            )

        self._admin.ask("create_topic", name.full, partitions, was_done=is_there)

    def delete(self, topic: str, force: bool = False) -> None:
        """Delete a topic with all its partitions, subscriptions and messages.

        Raises TopicNotFound, and NotAllowedError while producers or consumers are connected, unless forced.
        """
        check_flag("force", force)
        full = TopicName.parse(topic).full
        self._admin.ask(
            "delete_topic", full, force, was_done=lambda refused: isinstance(refused, TopicNotFound)
        )

    def list(self, namespace: str = "public/default") -> list[str]:
        """Full names of the topics of a namespace, sorted; a partitioned topic counts once.

        Raises TopicNotFound if the namespace does not exist.
        """
        return sorted(self.partitions(namespace))

    def partitions(self, namespace: str = "public/default") -> dict[str, int]:
        """How many partitions each topic of a namespace has; 0 for one that is not partitioned.

        Raises TopicNotFound if the namespace does not exist.
        """
        check_text("namespace", namespace)
        if not is_namespace(namespace):
            raise InvalidTopicName(f"{namespace!r} is not a namespace: use 'tenant/namespace'")
        return {name: count for name, count in self._admin.ask("list_topics", namespace)}  # noqa: C416

    def get_partitions(self, topic: str) -> int:
        """The number of partitions; 0 for a topic that is not partitioned. Raises TopicNotFound."""
        name = TopicName.parse(topic)
        count = self.partitions(f"{name.tenant}/{name.namespace}").get(name.full)
        if count is None:
            raise TopicNotFound(f"the topic {name.full} does not exist")
        return count
