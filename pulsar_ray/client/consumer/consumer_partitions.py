"""The partitions of one consumer, as topics come and go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.received.receiver_queue import ReceiverQueue
from pulsar_ray.errors import (
    OperationNotSupported,
    PulsarException,
    SubscriptionNotFound,
    TopicNotFound,
    WrongNode,
)
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)

KEEP_GONE = 100


class Discovery(Protocol):
    """A periodic look for topics that come and go, while the consumer is open."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def end(self) -> None: ...

    def look(self) -> None: ...


class ConsumerPartitions:
    """Knows the partitions that messages come from; `lock` is the consumer's.

    `on_failed` gets an error that the whole consumer cannot go on with.
    """

    def __init__(
        self,
        queue: ReceiverQueue,
        lock: threading.Lock,
        on_failed: Callable[[PulsarException], None],
        *,
        is_multi_topic: bool,
    ) -> None:
        self.is_multi_topic = is_multi_topic
        self.all: list[PartitionConsumer] = []
        """Replaced, never changed, as topics come and go."""
        self.by_topic: dict[str, PartitionConsumer] = {}
        self.single: PartitionConsumer | None = None
        """The only partition there is, unless that may change."""
        self.gone: dict[str, PartitionConsumer] = {}
        """Partitions that were deleted lately: acknowledgments of their messages have no effect."""
        self.absent: dict[str, WrongNode] = {}
        """Partitions that were away when they were to be opened, until they are back."""
        self.withheld: set[str] = set()
        """Topics whose subscription was deleted under this consumer."""
        self.discovery: Discovery | None = None
        self.is_leaving = False
        """Set before the partitions are closed.

        A thread that adds one from then on closes it itself.
        """
        self._queue = queue
        self._lock = lock
        self._on_failed = on_failed

    def forked(self, lock: threading.Lock) -> None:
        """Take the new lock, in a forked child."""
        self._lock = lock
        for partition in self.all:
            partition.forked(lock)

    def stop_discovery(self) -> None:
        """Look for no more topics, before the consumer leaves its partitions."""
        self.is_leaving = True
        if self.discovery is not None:
            self.discovery.stop()

    def end_discovery(self) -> None:
        """Do as `stop_discovery`, behind a look that is under way."""
        if self.discovery is not None:
            self.discovery.end()
        self.stop_discovery()

    def go_on_discovering(self) -> None:
        """Look for topics again: the consumer stays."""
        self.is_leaving = False
        if self.discovery is not None:
            self.discovery.start()

    def add(self, partition: PartitionConsumer) -> None:
        """Add a partition, before it is opened."""
        with self._lock:
            self.absent.pop(partition.route.topic, None)
            self._set([*self.all, partition])
            self.gone.pop(partition.route.topic, None)

    def miss(self, route: PartitionRoute, absence: WrongNode) -> None:
        """Go on without a partition that is away, until it is back."""
        if route.topic not in self.absent:
            logger.warning("the consumer goes on without %s: %s", route.topic, absence)
        self.absent[route.topic] = absence.again()

    def remove(self, partition: PartitionConsumer) -> None:
        """Remove a partition that is no more; what it had delivered is not handed out."""
        with self._lock:
            if partition not in self.all:
                return
            self._set([other for other in self.all if other is not partition])
            self._queue.take_all(partition.deliveries)
            self.gone[partition.route.topic] = partition
            while len(self.gone) > KEEP_GONE:
                del self.gone[next(iter(self.gone))]
        partition.abandon()

    def _set(self, partitions: list[PartitionConsumer]) -> None:
        self.all = partitions
        self.by_topic = {partition.route.topic: partition for partition in partitions}
        may_come = self.is_multi_topic or self.absent
        self.single = partitions[0] if len(partitions) == 1 and not may_come else None

    def failed(self, partition: PartitionConsumer, error: PulsarException) -> None:
        """Go on without a deleted topic if there are several; else the consumer fails."""
        if not self.is_multi_topic or not isinstance(error, (TopicNotFound, SubscriptionNotFound)):
            self._on_failed(error)
            return
        if isinstance(error, SubscriptionNotFound) and partition.session.is_of(error.directory):
            self.withheld.add(partition.route.topic)
        logger.warning("the consumer goes on without %s: %s", partition.route.topic, error)
        self.remove(partition)

    def there(self) -> list[PartitionConsumer]:
        """The partitions that are not known to be away. Raises WrongNode if none is left."""
        there = [partition for partition in self.all if partition.link.absence is None]
        if not there:
            self.check_all_there()
        return there

    def check_all_there(self) -> None:
        """Raise WrongNode if a partition is away: some requests have to reach all."""
        absences = [*self.absent.values(), *(partition.link.absence for partition in self.all)]
        for absence in absences:
            if absence is not None:
                raise absence.again()

    def of(self, topic: str, index: int) -> PartitionConsumer:
        """The partition of a message id: by topic, or of one topic by index.

        Raises OperationNotSupported for an id of no partition of the consumer, WrongNode if it is away.
        """
        if self.single is not None:
            if topic and topic != self.single.route.topic:
                raise OperationNotSupported(
                    f"the id belongs to {topic}, this consumer to {self.single.route.topic}"
                )
            return self.single
        partition = self.by_topic.get(topic) or self.gone.get(topic)
        if partition is None and not topic and not self.is_multi_topic:
            partition = next((each for each in self.all if each.route.partition == index), None)
        if topic in self.absent:
            raise self.absent[topic]
        if partition is None:
            raise OperationNotSupported(
                f"no partition of this consumer is known for an id of {topic or 'no topic'}: use the "
                "received message's id"
            )
        return partition

    def send_credit(self) -> None:
        """Report to all dispatchers, for the window may have become larger."""
        for partition in self.all:
            partition.deliveries.send_credit()
