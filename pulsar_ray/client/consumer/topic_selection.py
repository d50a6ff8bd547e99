"""The partitions a consumer is to have: of one topic, a list, or a pattern."""

from __future__ import annotations

import re
import secrets
from collections.abc import Set
from contextlib import suppress
from typing import Protocol

from pulsar_ray.client.consumer.topic_pattern import TopicPattern
from pulsar_ray.client.dead_letters.letter_topics import LetterTopics
from pulsar_ray.client.endpoint.actor_links import ActorLinks
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import TopicNotFound
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import partition_name
from pulsar_ray.transport.cluster import PartitionRoute


class TopicSelection(Protocol):
    """Finds the partitions of a consumer; `name` is what its `topic()` returns."""

    name: str
    may_change: bool
    """Whether `routes` may have another answer later."""

    @property
    def letter_topics(self) -> Set[str]:
        """Retry letter topics among them, by their names without partitions."""

    def routes(self, links: ActorLinks, deadline: float, *, create: bool) -> list[PartitionRoute]:
        """The partitions that exist now, those of a topic by index.

        With `create` topics are created if they may be. Raises what finding them raises.
        """


def selection_of(options: ConsumerOptions) -> TopicSelection:
    """The topics that a consumer's `topic` argument selects. Raises InvalidTopicName."""
    topics = _given(options)
    return _WithRetryTopics(topics, LetterTopics(options)) if options.enable_retry else topics


def _given(options: ConsumerOptions) -> TopicSelection:
    if isinstance(options.topic, str):
        return _OneTopic(options.topic)
    if isinstance(options.topic, re.Pattern):
        return _MatchingTopics(TopicPattern.of(options))
    return _ListedTopics(options.topic)


class _WithRetryTopics:
    """Adds the retry letter topic of each topic.

    It is created when its topic is first seen. One that is deleted later stays away until its topic is
    subscribed to anew.
    """

    def __init__(self, topics: TopicSelection, letters: LetterTopics) -> None:
        self.name = topics.name
        self.may_change = True
        self._known: set[str] = set()
        self._topics = topics
        self._letters = letters

    @property
    def letter_topics(self) -> Set[str]:
        return self._known

    def routes(self, links: ActorLinks, deadline: float, *, create: bool) -> list[PartitionRoute]:
        found = {route.topic: route for route in self._topics.routes(links, deadline, create=create)}
        sources = {TopicName.parse(topic).partitioned_full for topic in found}
        for topic in sorted({self._letters.retry_topic(source) for source in sources}):
            is_new = topic not in self._known
            self._known.add(topic)
            with suppress(TopicNotFound):
                routes = _found(links, TopicName.parse(topic), deadline, create=is_new)
                found.update((route.topic, route) for route in routes)
        return list(found.values())


class _OneTopic:
    letter_topics: Set[str] = frozenset()

    def __init__(self, topic: str) -> None:
        self._topic = TopicName.parse(topic)
        self.name = self._topic.full
        self.may_change = False

    def routes(self, links: ActorLinks, deadline: float, *, create: bool) -> list[PartitionRoute]:
        found = _found(links, self._topic, deadline, create=create)
        self.may_change = not self._topic.is_partition and found[0].partition >= 0
        return found


class _ListedTopics:
    """Waits for a topic that does not exist and may not be created."""

    letter_topics: Set[str] = frozenset()

    def __init__(self, topics: list[str]) -> None:
        self._topics = list(dict.fromkeys(TopicName.parse(topic) for topic in topics))
        first = f"{self._topics[0].full}-" if self._topics else ""
        self.name = f"{first}TopicsConsumerFakeName-{secrets.token_hex(5)}"
        self.may_change = bool(topics)

    def routes(self, links: ActorLinks, deadline: float, *, create: bool) -> list[PartitionRoute]:
        found: dict[str, PartitionRoute] = {}
        for topic in self._topics:
            try:
                routes = _found(links, topic, deadline, create=create)
            except TopicNotFound:
                if create:
                    # Without its namespace it could not appear either, which is an error.
                    links.topics(f"{topic.tenant}/{topic.namespace}", deadline)
                continue
            found.update((route.topic, route) for route in routes)
        return list(found.values())


class _MatchingTopics:
    letter_topics: Set[str] = frozenset()

    def __init__(self, pattern: TopicPattern) -> None:
        self._pattern = pattern
        self.name = pattern.text
        self.may_change = True

    def routes(self, links: ActorLinks, deadline: float, *, create: bool) -> list[PartitionRoute]:
        try:
            topics = links.topics(self._pattern.namespace, deadline)
        except TopicNotFound:
            return []
        return [
            PartitionRoute(name, index, partition_name(name))
            for topic, partitions in topics
            if self._pattern.matches(topic)
            for name, index in _partitions(topic, partitions)
        ]


def _found(links: ActorLinks, name: TopicName, deadline: float, *, create: bool) -> list[PartitionRoute]:
    """A look for topics that come and go wakes none of those that sleep."""
    return links.resolve(name, deadline) if create else links.partitions(name, deadline)


def _partitions(topic: str, count: int) -> list[tuple[str, int]]:
    if not count:
        return [(topic, -1)]
    name = TopicName.parse(topic)
    return [(name.partition(index).full, index) for index in range(count)]
