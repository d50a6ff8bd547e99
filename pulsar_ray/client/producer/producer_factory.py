"""Opens one PartitionProducer per partition of a topic: all or none.

Partitions that are away are opened when they are back.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable
from contextlib import suppress

from pulsar_ray.client.encryption.payload_cipher import PayloadCipher
from pulsar_ray.client.endpoint.actor_links import ActorLinks
from pulsar_ray.client.endpoint.ending import close_each
from pulsar_ray.client.endpoint.periodic_check import PeriodicCheck
from pulsar_ray.client.metrics.client_figures import ClientFigures
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.schemas.registration import written_version
from pulsar_ray.errors import TopicNotFound, WrongNode
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)


def _check_any_there(partitions: list[PartitionProducer]) -> None:
    absences = [partition.queue.state.absence for partition in partitions]
    if (first := absences[0]) is not None and all(absences):
        raise first.again()


class ProducerFactory:
    """Opens producers over the links of one client; their endpoint ids come from `endpoint_ids`.

    `figures` counts them, if the client has metrics.
    """

    def __init__(
        self, links: ActorLinks, endpoint_ids: itertools.count[int], figures: ClientFigures | None
    ) -> None:
        self._links = links
        self._figures = figures
        self._endpoint_ids = endpoint_ids

    def open(self, options: ProducerOptions) -> tuple[str, list[PartitionProducer]]:
        """Open a producer on each partition of a topic; all by index, or none.

        Returns the topic's full name too. Raises what `Client.create_producer` raises; nothing stays open
        then.
        """
        name = TopicName.parse(options.topic)
        deadline = self._links.deadline()
        partitions: list[PartitionProducer] = []
        cipher = PayloadCipher.of(options)
        try:
            routes = self._links.resolve(name, deadline)
            version = written_version(self._links, name, options.schema, options.producer_name, deadline)
            for route in routes:
                deadline = self._started(route, deadline)
                partitions.append(self._open_one(route, options, version, deadline, cipher))
            _check_any_there(partitions)
        except BaseException:
            close_each(partitions, self._links.deadline())
            raise
        return name.full, partitions

    def _started(self, route: PartitionRoute, deadline: float) -> float:
        """Wait for a partition that starts; returns the deadline for those that follow."""
        if not route.away:
            with suppress(WrongNode):  # met again by who opens it
                return self._links.to_partition(route).ensure_started(deadline)
        return deadline

    def _open_one(
        self,
        route: PartitionRoute,
        options: ProducerOptions,
        schema_version: int,
        deadline: float,
        cipher: PayloadCipher | None,
    ) -> PartitionProducer:
        partition = self._open_or_wait(route, options, schema_version, deadline, cipher)
        if self._figures is not None:
            self._figures.add_producer(partition, route.topic, partition.queue.state.unconfirmed.latency)
        return partition

    def _open_or_wait(
        self,
        route: PartitionRoute,
        options: ProducerOptions,
        schema_version: int,
        deadline: float,
        cipher: PayloadCipher | None,
    ) -> PartitionProducer:
        link = self._links.to_partition(route)

        def new() -> PartitionProducer:
            return PartitionProducer(link, next(self._endpoint_ids), route, options, schema_version, cipher)

        partition = new()
        if not route.away:
            try:
                partition.open(deadline)
            except WrongNode as error:
                if route.partition < 0:
                    raise
                absence = error
            else:
                return partition
            partition = new()
        else:
            absence = WrongNode(route.away)
        if options.access_mode != ProducerAccessMode.Shared:
            # Nobody could say whether another producer has that partition.
            raise absence
        logger.warning("the producer begins without %s: %s", route.topic, absence)
        partition.open_when_back(absence)
        return partition

    def follow_growth(
        self, producer: Producer, options: ProducerOptions, cipher: PayloadCipher | None
    ) -> None:
        """Use partitions that the topic may get later, with the same key."""
        name = TopicName.parse(options.topic)
        if name.is_partition or not options.auto_update_partitions or not producer.is_partitioned:
            return

        def find() -> list[PartitionRoute]:
            return self._links.partitions(name, self._links.deadline())

        def open_one(route: PartitionRoute) -> PartitionProducer:
            deadline = self._links.deadline()
            # Known by now, unless the topic's schemas were deleted meanwhile.
            version = written_version(self._links, name, options.schema, options.producer_name, deadline)
            return self._open_one(route, options, version, deadline, cipher)

        period_s = options.auto_update_partitions_interval_seconds
        producer.growth = growth = PartitionGrowth(producer, find, open_one, period_s)
        growth.start()


class PartitionGrowth(PeriodicCheck):
    """Looks every `period_s` seconds how many partitions there are.

    `find` gives the partitions there are, by index, and `open_one` opens the producer of one. They are taken
    in this order; what cannot be opened is tried again at the next look.
    """

    def __init__(
        self,
        producer: Producer,
        find: Callable[[], list[PartitionRoute]],
        open_one: Callable[[PartitionRoute], PartitionProducer],
        period_s: float,
    ) -> None:
        super().__init__(f"partitions of {producer.topic()}", period_s)
        # Not to keep a producer that its program forgets.
        self._producer = weakref.ref(producer)
        self._find = find
        self._open_one = open_one

    def _look(self) -> None:
        producer = self._producer()
        if producer is None:
            return
        try:
            routes = self._find()
        except TopicNotFound:
            return  # deleted: its partitions are refused by themselves
        for route in routes[producer.partition_count :]:
            if self.is_stopped:
                return
            producer.add_partition(self._open_one(route))
            logger.info("the producer of %s uses %s from now on", producer.topic(), route.topic)
