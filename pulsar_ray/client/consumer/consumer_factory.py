"""Opening of consumers: one PartitionConsumer per partition, all or none.

Partitions that are away are opened when they are back.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import time
from dataclasses import replace

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.consumer.start_position import StartPosition
from pulsar_ray.client.consumer.topic_selection import TopicDiscovery, TopicSelection, selection_of
from pulsar_ray.client.dead_letters.letters import LetterTopics
from pulsar_ray.client.endpoint.actor_links import ActorLinks
from pulsar_ray.client.endpoint.ending import close_each
from pulsar_ray.client.metrics.client_figures import ClientFigures
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.schema import BytesSchema
from pulsar_ray.client.received.block_decoder import SegmentFiles
from pulsar_ray.client.schemas.readings import SchemaReadings
from pulsar_ray.client.schemas.registration import check_readable, finder_of
from pulsar_ray.errors import (
    AlreadyClosed,
    InvalidConfiguration,
    NotAllowedError,
    OperationNotSupported,
    PulsarException,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
    WrongNode,
)
from pulsar_ray.model.enums import InitialPosition, SubscriptionMode
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)

UNDO_S = 5.0
"""How long a refused consumer may take to delete subscriptions that were created for it."""
MAX_REFUSALS = 3
"""Refusals by a partition, as having no such subscription, after which none is tried again.

Where no subscription may be created the refusal is final.
"""


class ConsumerFactory:
    """Opens consumers over the links of one client; their endpoint ids come from `endpoint_ids`.

    `figures` counts them, if the client has metrics.
    """

    def __init__(
        self, links: ActorLinks, endpoint_ids: itertools.count[int], figures: ClientFigures | None
    ) -> None:
        self._links = links
        self._figures = figures
        self._endpoint_ids = endpoint_ids
        self._files = SegmentFiles()

    def open(
        self, options: ConsumerOptions, subscription: str, start: StartPosition | None = None
    ) -> tuple[str, ConsumerCore]:
        """Open a consumer; returns its name for its topic, and its core.

        `start` is where a non-durable cursor begins. Raises what `Client.subscribe` raises; nothing stays
        open then, and no subscription stays that was created for it.
        """
        if options.max_failures is not None:
            LetterTopics(options)  # refuses topics whose messages would circle
        topics = selection_of(options)
        if not isinstance(options.topic, str) or options.enable_retry:
            _check_queue(options)
        deadline = self._links.deadline()
        routes = topics.routes(self._links, deadline, create=True)
        core = ConsumerCore(options, options.consumer_name or secrets.token_hex(5), subscription, self._files)
        if topics.may_change:
            _check_queue(options)
        _check_start(start, routes)
        if type(options.schema) is not BytesSchema:
            core.readings = SchemaReadings(
                options.schema, finder_of(self._links, lambda: self._links.operation_timeout_s)
            )
            for name in dict.fromkeys(_whole(route) for route in routes):
                self._check_schema(core, topics, name, deadline)
        try:
            self._add_partitions(core, topics, routes, start, deadline)
            self._open_partitions(core, topics, deadline)
        except PulsarException as refused:
            if not isinstance(refused, (Timeout, AlreadyClosed)):
                self._undo_subscriptions(core)
            raise
        follows = topics.may_change and (core.is_multi_topic or options.auto_update_partitions)
        if follows or core.partitions.absent:
            core.partitions.discovery = discovery = self._discovery(core, topics, start)
            discovery.start()
        return topics.name, core

    def _check_schema(self, core: ConsumerCore, topics: TopicSelection, name: str, deadline: float) -> None:
        """Raise IncompatibleSchema for a topic that the consumer's schema cannot read.

        Letters have the schemas of their messages, which are checked where those are.
        """
        if name not in topics.letter_topics:
            check_readable(self._links, TopicName.parse(name), core.options.schema, core.name, deadline)

    def _undo_subscriptions(self, core: ConsumerCore) -> None:
        """Delete subscriptions that came into being for this consumer, which was refused somewhere.

        Nobody would acknowledge what they keep. Those that others use by now stay.
        """
        deadline = time.monotonic() + UNDO_S
        for partition in core.partitions.all:
            consumer = partition.awaited_consumer
            if consumer is None:
                continue
            try:
                self._links.undo_subscription(partition.link, consumer[0], deadline)
            except PulsarException as error:
                logger.warning(
                    "the subscription %r of %s may have been created for a consumer that was refused: %s",
                    core.subscription,
                    partition.route.topic,
                    error,
                )

    def _add_partitions(
        self,
        core: ConsumerCore,
        topics: TopicSelection,
        routes: list[PartitionRoute],
        start: StartPosition | None,
        deadline: float,
    ) -> None:
        """Start the dispatchers of all partitions at once, before any is attached to."""
        for route in routes:
            if route.away:
                core.partitions.miss(route, WrongNode(route.away))
                continue
            try:
                options = _options_for(route, core, topics)
                link = self._links.to_dispatcher(route, options, core.subscription, deadline)
            except TopicNotFound:
                if core.is_multi_topic:
                    continue  # deleted since it was found
                raise
            except WrongNode as error:
                core.partitions.miss(route, error)
                continue
            core.partitions.add(self._partition(core, route, link, start))

    def _open_partitions(self, core: ConsumerCore, topics: TopicSelection, deadline: float) -> None:
        """Attach in index order. Raises WrongNode if none of them is there."""
        opened: list[PartitionConsumer] = []
        try:
            for partition in core.partitions.all:
                try:
                    options = _options_for(partition.route, core, topics)
                    deadline = self._open_partition(partition, options, core.subscription, deadline)
                except WrongNode as error:
                    core.partitions.miss(partition.route, error)
                    core.partitions.remove(partition)
                else:
                    opened.append(partition)
            if not opened:
                core.partitions.check_all_there()
        except BaseException:
            close_each(opened, self._links.deadline())
            raise

    def _partition(
        self, core: ConsumerCore, route: PartitionRoute, link: ActorLink, start: StartPosition | None
    ) -> PartitionConsumer:
        partition = PartitionConsumer(core, link, next(self._endpoint_ids), route)
        if start is not None:
            partition.deliveries.start_at(start)
        if self._figures is not None:
            self._figures.add_consumer(
                partition, route.topic, core.subscription, partition.deliveries.received_counts
            )
        return partition

    def _discovery(
        self, core: ConsumerCore, topics: TopicSelection, own_start: StartPosition | None
    ) -> TopicDiscovery:
        # Partitions that are found later are new: none of their messages is to be missed, whatever
        # `initial_position` is. The same holds for a partition that was away, unless it has the subscription.
        options = replace(core.options, initial_position=InitialPosition.Earliest)
        is_durable = options.subscription_mode == SubscriptionMode.Durable
        earliest = None if is_durable else StartPosition.at(MessageId.earliest, inclusive=True)

        period_s = max(1, options.pattern_auto_discovery_period)
        if options.auto_update_partitions:
            period_s = min(period_s, options.auto_update_partitions_interval_seconds)

        def find() -> list[PartitionRoute]:
            routes = topics.routes(self._links, self._links.deadline(), create=False)
            return routes if options.auto_update_partitions else _without_growth(core, routes)

        def attach(route: PartitionRoute) -> None:
            deadline = self._links.deadline()
            self._check_schema(core, topics, _whole(route), deadline)
            link = self._links.to_dispatcher(route, options, core.subscription, deadline)
            start = own_start if route.topic in core.partitions.absent else earliest
            partition = self._partition(core, route, link, start)
            core.partitions.add(partition)
            try:
                self._open_partition(partition, options, core.subscription, deadline)
                if core.partitions.is_leaving:
                    partition.close(deadline)
            except BaseException:
                core.partitions.remove(partition)
                raise
            if core.partitions.is_leaving:
                core.partitions.remove(partition)

        return TopicDiscovery(core, find, attach, period_s)

    def _open_partition(
        self, partition: PartitionConsumer, options: ConsumerOptions, subscription: str, deadline: float
    ) -> float:
        """Open it; returns the deadline for those that follow."""
        refusals = 0
        while True:
            try:
                return partition.open(deadline)
            except SubscriptionNotFound as error:
                # A dispatcher whose subscription is being removed, or that died before it had registered it
                # and cannot know whether it was removed meanwhile, must not create it: another one does.
                refusals += error.directory is not None
                if refusals > MAX_REFUSALS or time.monotonic() > deadline:
                    raise
                self._links.replace_dispatcher(partition.link)
            except NotAllowedError:
                # A dispatcher that could not create the subscription keeps what was asked of it. The next
                # consumer may ask for something else, and is not to be refused for that.
                with contextlib.suppress(PulsarException):
                    self._links.replace_dispatcher(partition.link)
                raise
            except AlreadyClosed:
                # Not the client: another thread unsubscribed just now.
                if not partition.link.is_closed:
                    raise
            link = self._links.to_dispatcher(partition.route, options, subscription, deadline)
            partition.attach_through(link)

    def close(self) -> None:
        """Close the segment files that all of them read."""
        self._files.close()


def _without_growth(core: ConsumerCore, routes: list[PartitionRoute]) -> list[PartitionRoute]:
    """Without partitions that were added to topics of which the consumer has some already."""
    known = {_whole(partition.route) for partition in core.partitions.all}
    known |= {TopicName.parse(topic).partitioned_full for topic in core.partitions.absent}
    had = core.partitions.by_topic.keys() | core.partitions.absent.keys()
    return [route for route in routes if route.topic in had or _whole(route) not in known]


def _options_for(route: PartitionRoute, core: ConsumerCore, topics: TopicSelection) -> ConsumerOptions:
    """The consumer's options for a partition: all that waits to be retried is wanted."""
    if _whole(route) in topics.letter_topics:
        return replace(core.options, initial_position=InitialPosition.Earliest)
    return core.options


def _whole(route: PartitionRoute) -> str:
    return TopicName.parse(route.topic).partitioned_full


def _check_queue(options: ConsumerOptions) -> None:
    if options.receiver_queue_size == 0:
        raise InvalidConfiguration(
            "receiver_queue_size=0 needs a single topic without partitions or retry letter topic: give at "
            "least 1"
        )


def _check_start(start: StartPosition | None, routes: list[PartitionRoute]) -> None:
    if start is not None and len(routes) > 1 and isinstance(start.target["target"], list):
        raise OperationNotSupported(
            "a message id is a place in one partition: start a reader of several partitions at "
            "MessageId.earliest or latest, or read each partition by its own name"
        )
