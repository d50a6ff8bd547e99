"""Opens what a consumer or reader is made of: one PartitionConsumer per partition, all or none."""

from __future__ import annotations

import itertools
import secrets
import time

from pulsar_ray.client.actor_links import ActorLinks
from pulsar_ray.client.consumer_core import ConsumerCore
from pulsar_ray.client.consumer_options import ConsumerOptions
from pulsar_ray.client.partition_consumer import PartitionConsumer
from pulsar_ray.client.segment_files import SegmentFiles
from pulsar_ray.client.start_position import StartPosition
from pulsar_ray.errors import InvalidConfiguration, SubscriptionNotFound
from pulsar_ray.model.topic_name import TopicName


class ConsumerOpening:
    """Opens consumers over the links of one client; their endpoint ids come from `endpoint_ids`."""

    def __init__(self, links: ActorLinks, endpoint_ids: itertools.count[int]) -> None:
        self._links = links
        self._endpoint_ids = endpoint_ids
        self._files = SegmentFiles()

    def open(
        self, options: ConsumerOptions, subscription: str, start: StartPosition | None = None
    ) -> tuple[str, ConsumerCore]:
        """The topic's full name and the open core; `start` is where a non-durable cursor begins.

        Raises what `Client.subscribe` raises; nothing stays open then.
        """
        assert isinstance(options.topic, str)
        name = TopicName.parse(options.topic)
        deadline = self._links.deadline()
        routes = self._links.resolve(name, deadline)
        if options.receiver_queue_size == 0 and len(routes) > 1:
            raise InvalidConfiguration(
                "receiver_queue_size=0 needs a topic without partitions: give at least 1"
            )
        core = ConsumerCore(options, options.consumer_name or secrets.token_hex(5), subscription, self._files)
        # All dispatchers start at once, then partitions are attached in index order.
        links = [self._links.to_dispatcher(route, options, subscription, deadline) for route in routes]
        for route, link in zip(routes, links, strict=True):
            partition = PartitionConsumer(core, link, next(self._endpoint_ids), route)
            if start is not None:
                partition.start, partition.skip = start.target, start.skip
            core.partitions.append(partition)
        opened: list[PartitionConsumer] = []
        try:
            for partition in core.partitions:
                self._open_partition(partition, options, subscription, deadline)
                opened.append(partition)
        except BaseException:
            for partition in opened:
                partition.close(time.monotonic() + self._links.operation_timeout_s)
            raise
        return name.full, core

    def _open_partition(
        self, partition: PartitionConsumer, options: ConsumerOptions, subscription: str, deadline: float
    ) -> None:
        try:
            partition.open(deadline)
        except SubscriptionNotFound:
            # A dispatcher that died before it had registered its subscription cannot know whether that was
            # removed meanwhile: it must not create it, another one does.
            self._links.replace_dispatcher(partition.link)
            self._links.to_dispatcher(partition.route, options, subscription, deadline)
            partition.open(deadline)

    def close(self) -> None:
        """Close the segment files that all of them read."""
        self._files.close()
