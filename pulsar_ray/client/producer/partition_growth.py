"""Keeps a producer on all partitions of its topic, which may get more of them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pulsar_ray.client.endpoint.periodic_check import PeriodicCheck
from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import TopicNotFound
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)


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
        self._producer = producer
        self._find = find
        self._open_one = open_one

    def _look(self) -> None:
        producer = self._producer
        try:
            routes = self._find()
        except TopicNotFound:
            return  # deleted: its partitions say so themselves
        for route in routes[producer.partition_count :]:
            if self.is_stopped:
                return
            producer.add_partition(self._open_one(route))
            logger.info("the producer of %s uses %s from now on", producer.topic(), route.topic)
