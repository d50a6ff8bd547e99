"""Consumers' requests about what they hold, some of which have to wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, Key
from pulsar_ray.dispatch.policies.subscription_type import SubscriptionType
from pulsar_ray.dispatch.redelivery import EMPTY_QUEUE, ConsumerQueue, NackItem, Redelivery
from pulsar_ray.dispatch.returning_consumers import ReturningConsumers


class _Deferred(NamedTuple):
    """A request that waits until what its consumer holds from before a restart was read."""

    consumer_id: int
    items: list[NackItem]
    queue: ConsumerQueue
    through: int | None
    handed_over: int | None = None
    is_repeat: bool = False
    unreadable: Key | None = None


class RedeliveryRequests:
    """Methods return whether an ordered subscription went back: then queues must go."""

    def __init__(
        self,
        redelivery: Redelivery,
        returning: ReturningConsumers,
        consumers: Mapping[int, Consumer],
        kind: SubscriptionType,
        blocks: DispatchBlocks,
    ) -> None:
        self._redelivery = redelivery
        self._returning = returning
        self._consumers = consumers
        self._type = kind
        self._blocks = blocks
        self.deferred: list[_Deferred] = []
        """Requests that wait for blocks to be read."""

    def negative_acknowledge(self, consumer_id: int, items: Iterable[NackItem], queue: ConsumerQueue) -> bool:
        """Let messages come again that failed; on an ordered subscription also what came after them."""
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            return False
        if self._returning.has_claims(consumer_id):
            self.deferred.append(_Deferred(consumer_id, list(items), queue, None))
            return False
        lowest = self._redelivery.negative_acknowledge(consumer, items, queue.had_received)
        if lowest is None or not self._type.policy.is_ordered:
            return False
        self._redelivery.rewind(consumer, *lowest, queue)
        return True

    def redeliver(
        self, consumer_id: int, through: int, handed_over: int | None, *, is_repeat: bool = False
    ) -> bool:
        """Let everything come again up to number `through`; on an ordered subscription all.

        A repeat, which was sent before queues were dropped last, may have been carried out.
        """
        consumer = self._consumers.get(consumer_id)
        active = self._type.active
        if consumer is None or (active is not None and consumer is not active):
            # One that stands by has nothing, and the queue of the active one must stay as it is.
            return False
        if self._returning.has_claims(consumer_id):
            self.deferred.append(_Deferred(consumer_id, [], EMPTY_QUEUE, through, handed_over, is_repeat))
            return False
        is_ordered = self._type.policy.is_ordered
        if is_ordered and is_repeat and all(delivery.number > through for delivery in consumer.deliveries):
            return False
        self._redelivery.redeliver(consumer, None if is_ordered else through, handed_over)
        return is_ordered

    def cannot_read(self, consumer_id: int, place: Key) -> None:
        """Count a block for one message that its consumer cannot decode."""
        consumer, block = self._consumers.get(consumer_id), self._blocks.index.get(place)
        if consumer is None:
            return
        if block is not None:
            self._blocks.count_as_one(consumer, block)
        elif self._returning.is_claimed(consumer_id, place):
            self.deferred.append(_Deferred(consumer_id, [], EMPTY_QUEUE, None, unreadable=place))

    def retry(self) -> Iterator[int]:
        """Blocks were read: do what waited for them; yields the consumers whose queues must go."""
        deferred, self.deferred = self.deferred, []
        for consumer_id, items, queue, through, handed_over, is_repeat, unreadable in deferred:
            if unreadable is not None:
                self.cannot_read(consumer_id, unreadable)
                continue
            if through is None:
                has_gone_back = self.negative_acknowledge(consumer_id, items, queue)
            else:
                has_gone_back = self.redeliver(consumer_id, through, handed_over, is_repeat=is_repeat)
            if has_gone_back:
                yield consumer_id

    def clear(self) -> None:
        """Everything starts over."""
        self.deferred.clear()
