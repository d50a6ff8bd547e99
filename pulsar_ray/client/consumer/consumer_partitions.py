"""The partitions of one consumer, as topics come and go."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received.receiver_queue import ReceiverQueue
from pulsar_ray.errors import PulsarException, SubscriptionNotFound, TopicNotFound, WrongNode
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)

KEEP_GONE = 100


class Discovery(Protocol):
    """What looks for topics that come and go, while the consumer is open."""

    def stop(self) -> None: ...

    def end(self) -> None: ...

    def look(self) -> None: ...


class ConsumerPartitions:
    """The part of a ConsumerCore that knows where messages come from. `lock` is held for moments."""

    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.queue = ReceiverQueue()
        self.is_multi_topic = not isinstance(options.topic, str)
        self.partitions: list[PartitionConsumer] = []
        """Replaced, never changed, as topics come and go."""
        self.by_topic: dict[str, PartitionConsumer] = {}
        self.single: PartitionConsumer | None = None
        """The only partition there is, unless that may change."""
        self.gone: dict[str, PartitionConsumer] = {}
        """Partitions that were deleted lately: what is still acknowledged there is nobody's concern."""
        self.absent: dict[str, WrongNode] = {}
        """Partitions that were away when they were to be opened; they are opened when they are back."""
        self.withheld: set[str] = set()
        """Topics whose subscription was deleted under this consumer."""
        self.discovery: Discovery | None = None
        self.is_leaving = False
        """Set before the partitions are closed: one that is added from then on is closed by who adds it."""

    def stop_discovery(self) -> None:
        """The consumer is about to leave its partitions, or has ended."""
        self.is_leaving = True
        if self.discovery is not None:
            self.discovery.stop()

    def end_discovery(self) -> None:
        """As `stop_discovery`; what is being found just now is found first."""
        if self.discovery is not None:
            self.discovery.end()
        self.stop_discovery()

    def fail(self, error: PulsarException) -> None:
        """The whole consumer cannot go on."""
        raise NotImplementedError

    def add(self, partition: PartitionConsumer) -> None:
        """One more partition, before it is opened."""
        with self.lock:
            self.absent.pop(partition.route.topic, None)
            self._set_partitions([*self.partitions, partition])
            self.gone.pop(partition.route.topic, None)

    def miss(self, route: PartitionRoute, absence: WrongNode) -> None:
        """A partition is away, and the consumer goes on without it until it is back."""
        if route.topic not in self.absent:
            logger.warning("the consumer goes on without %s: %s", route.topic, absence)
        self.absent[route.topic] = absence

    def check_all_there(self) -> None:
        """Raise WrongNode if a partition is away: for what has to be done at all of them."""
        absences = [*self.absent.values(), *(partition.link.absence for partition in self.partitions)]
        for absence in absences:
            if absence is not None:
                raise absence.again()

    def remove(self, partition: PartitionConsumer) -> None:
        """A partition is no more; what it had delivered is not handed out."""
        with self.lock:
            if partition not in self.partitions:
                return
            self._set_partitions([other for other in self.partitions if other is not partition])
            self.queue.take_all(partition)
            self.gone[partition.route.topic] = partition
            while len(self.gone) > KEEP_GONE:
                del self.gone[next(iter(self.gone))]
        partition.abandon()

    def _set_partitions(self, partitions: list[PartitionConsumer]) -> None:
        self.partitions = partitions
        self.by_topic = {partition.route.topic: partition for partition in partitions}
        may_come = self.is_multi_topic or self.absent
        self.single = partitions[0] if len(partitions) == 1 and not may_come else None

    def partition_failed(self, partition: PartitionConsumer, error: PulsarException) -> None:
        """A partition cannot go on: a consumer of several topics loses only this one if it was deleted."""
        if not self.is_multi_topic or not isinstance(error, (TopicNotFound, SubscriptionNotFound)):
            self.fail(error)
            return
        if isinstance(error, SubscriptionNotFound) and partition.is_of(error.directory):
            self.withheld.add(partition.route.topic)
        logger.warning("the consumer goes on without %s: %s", partition.route.topic, error)
        self.remove(partition)

    def send_credit(self) -> None:
        """The window may have become larger: each partition's dispatcher hears of it."""
        for partition in self.partitions:
            partition.send_credit()
