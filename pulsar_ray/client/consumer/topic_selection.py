"""The partitions a consumer is to have: of one topic, a list, or a pattern."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Protocol

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.topic_pattern import TopicPattern
from pulsar_ray.client.dead_letters.letters import LetterTopics
from pulsar_ray.client.endpoint.actor_links import ActorLinks
from pulsar_ray.client.endpoint.periodic_check import PeriodicCheck
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import AlreadyClosed, PulsarException, TopicNotFound, WrongNode
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import partition_name
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)


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
    subscribed to anew, or has been away itself.
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
        wanted = {self._letters.retry_topic(source) for source in sources}
        self._known &= wanted
        for topic in sorted(wanted):
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


ABSENT_LOOK_S = 3.0


class TopicDiscovery(PeriodicCheck):
    """Compares existing partitions with the consumer's every `period_s` seconds.

    `find` returns the existing partitions, `attach` opens a new one and adds it to the core. A failed attempt
    is repeated at the next look; while partitions are away looks follow each other sooner. A topic whose
    subscription was deleted is left alone until the topic itself has been deleted, or a consumer would bring
    back what an administrator has deleted.
    """

    def __init__(
        self,
        core: ConsumerCore,
        find: Callable[[], list[PartitionRoute]],
        attach: Callable[[PartitionRoute], None],
        period_s: float,
    ) -> None:
        super().__init__(f"topics of {core.subscription}", period_s)
        self._core = core
        self._find = find
        self._attach = attach
        self._refusals: dict[str, str] = {}
        """Holds the refusals of the last look, each of which is logged once."""

    @property
    def pause_s(self) -> float:
        """Seconds to the next look: fewer while partitions are away, which may be back soon."""
        return min(self._period_s, ABSENT_LOOK_S) if self._core.partitions.absent else self._period_s

    def _look(self) -> None:
        routes = {route.topic: route for route in self._find()}
        core = self._core
        for topic in [topic for topic in core.partitions.absent if topic not in routes]:
            core.partitions.absent.pop(topic, None)
        core.partitions.withheld.intersection_update(routes)
        self._refusals = {topic: text for topic, text in self._refusals.items() if topic in routes}
        for partition in core.partitions.all:
            if core.is_multi_topic and partition.route.topic not in routes:
                core.partitions.remove(partition)
        for topic, route in routes.items():
            if self.is_stopped or core.has_failed:
                return
            if topic in core.partitions.by_topic or topic in core.partitions.withheld:
                continue
            if route.away:
                core.partitions.miss(route, WrongNode(route.away))
            else:
                self._try_attach(route)

    def _try_attach(self, route: PartitionRoute) -> None:
        try:
            self._attach(route)
            self._refusals.pop(route.topic, None)
        except AlreadyClosed:
            self.stop()
        except WrongNode as error:
            self._core.partitions.miss(route, error)
        except PulsarException as error:
            if self._refusals.get(route.topic) != str(error):
                logger.warning("subscribing to %s, which is new, failed: %s", route.topic, error)
            self._refusals[route.topic] = str(error)
