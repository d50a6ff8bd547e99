"""The names of the retry letter and dead letter topics of one consumer."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received.block_rows import BlockRows, Rows
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import InvalidConfiguration, InvalidTopicName
from pulsar_ray.model.topic_name import PERSISTENT, TopicName

REAL_TOPIC = "REAL_TOPIC"


class LetterTopics:
    """Names letter topics by the topic of a message, never by a partition.

    They are stored even if that topic is not. Raises InvalidConfiguration for topics that would be their own
    letter topics, InvalidTopicName.
    """

    def __init__(self, options: ConsumerOptions) -> None:
        policy = options.dead_letter_policy
        self._retry = _full(policy.retry_letter_topic) if policy is not None else ""
        self._dead = _full(policy.dead_letter_topic) if policy is not None else ""
        self._subscription = options.subscription_name
        self._retry_suffix = f"-{options.subscription_name}-RETRY"
        self._enables_retry = options.enable_retry
        self._listed = _listed(options)
        self._check()

    def _check(self) -> None:
        if self._dead and self._dead == self._retry:
            raise InvalidConfiguration(
                f"dead_letter_topic and retry_letter_topic are both {self._dead}: give two topics"
            )
        for topic in self._listed:
            self.check_dead_letter_topic(self.dead_letter_topic(topic), topic)
            if self._enables_retry and TopicName.parse(self.retry_topic(topic)).partitioned_full == topic:
                raise InvalidConfiguration(
                    f"retry_letter_topic={topic} is the topic that is consumed: give another one"
                )

    def check_dead_letter_topic(self, dead_letter_topic: str, source: str) -> None:
        """Raise InvalidConfiguration if messages would be moved to where they come from."""
        whole = TopicName.parse(dead_letter_topic).partitioned_full
        if whole == source or whole in self._listed:
            raise InvalidConfiguration(
                f"dead_letter_topic={dead_letter_topic} is consumed itself: its messages would circle; "
                "give another topic"
            )

    def retry_topic(self, source: str) -> str:
        """The topic where messages of a topic wait to be retried."""
        return self._retry or self._derived(source, "RETRY")

    def dead_letter_topic(self, source: str) -> str:
        """The topic that messages of a topic are moved to."""
        return self._dead or self._derived(source, "DLQ")

    def are_letters(self, topic: str) -> bool:
        """Whether what a received topic has comes from a retry letter topic of this consumer.

        Only there are properties the system's: elsewhere whoever publishes can set them.
        """
        name = TopicName.parse(topic).partitioned_full
        if not self._enables_retry or name in self._listed:
            return False
        if len(self._listed) == 1:
            return True
        return name == self._retry if self._retry else name.endswith(self._retry_suffix)

    def rows_by_source(self, block: ReceivedBlock, rows: Rows) -> dict[str, BlockRows]:
        """Group rows of a block by the topic that they belong to.

        It is the same for all of them, unless they come from a retry letter topic.
        """
        properties = block.properties
        if properties is None or not self.are_letters(block.topic_name):
            return {self.source_of(block.topic_name, {}): BlockRows(block, rows)}
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(self.source_of(block.topic_name, properties[row]), []).append(row)
        return {source: BlockRows(block, numbers) for source, numbers in found.items()}

    def source_of(self, topic: str, properties: Mapping[str, str]) -> str:
        """The topic that a received message belongs to.

        It may come from a retry letter topic, where `REAL_TOPIC` counts if it names a topic of this consumer
        whose retry letters go there.
        """
        name = TopicName.parse(topic).partitioned_full
        if not self.are_letters(name):
            return name
        if len(self._listed) == 1:
            return self._listed[0]
        said = properties.get(REAL_TOPIC, "")
        if self._retries_in(said, name):
            return said
        return name if self._retry else name.removesuffix(self._retry_suffix)

    def _retries_in(self, source: str, retry_topic: str) -> bool:
        try:
            is_whole = TopicName.parse(source).partitioned_full == source
            is_there = is_whole and self.retry_topic(source) == retry_topic
        except InvalidTopicName:
            return False
        return is_there and (not self._listed or source in self._listed)

    def _derived(self, source: str, kind: str) -> str:
        name = TopicName.parse(source)
        whole = TopicName.parse(name.partitioned_full)
        derived = (
            f"{PERSISTENT}://{name.tenant}/{name.namespace}/{whole.local_name}-{self._subscription}-{kind}"
        )
        try:
            return TopicName.parse(derived).full
        except InvalidTopicName as error:
            raise InvalidTopicName(f"{error.text}; name the {kind} topic in the dead_letter_policy") from None


def _full(name: str) -> str:
    return TopicName.parse(name).full if name else ""


def _listed(options: ConsumerOptions) -> list[str]:
    """The topics that are consumed by name; none of a pattern."""
    topics = [options.topic] if isinstance(options.topic, str) else options.topic
    if not isinstance(topics, list):
        return []
    return list(dict.fromkeys(TopicName.parse(topic).partitioned_full for topic in topics))
