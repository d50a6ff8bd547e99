"""Whether more messages come to a consumer, of a topic that is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from pulsar_ray.broker.subscription.consumers.connected_consumers import ConsumerEndpoint
from pulsar_ray.broker.subscription.log.partition_link import PartitionLink
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.model.message_id import Position

UNKNOWN_DEADLINE_S = 2.0


class DeliveryProgress(Protocol):
    """Answers consumers how far their topic and their deliveries are."""

    async def last_message(self, subscription: str) -> Any:
        """Return the partition's last message, as a subscription reads it."""

    async def has_more(self, endpoint: ConsumerEndpoint, numbering: int, received: int) -> bool:
        """Return whether anything stored by now is still to come to a consumer.

        It has received this far.
        """


class StoredProgress:
    """The progress of consumers of a stored topic.

    The partition is asked where its log ends.
    """

    def __init__(self, partition: PartitionLink, served: Mapping[str, ServedSubscription]) -> None:
        self._partition = partition
        self._served = served

    async def last_message(self, subscription: str) -> Any:
        stored = await self._partition.call("last_message")
        log = self._served[subscription].compacted_log()
        compacted = log.compacted
        if compacted is None or Position(*stored["position"]) > compacted.horizon:
            return stored
        ledger_id, entry_id, batch_index, batch_size = compacted.last
        return {
            **stored,
            "position": [ledger_id, entry_id],
            "batch_index": batch_index,
            "batch_size": batch_size,
        }

    async def has_more(self, endpoint: ConsumerEndpoint, numbering: int, received: int) -> bool:
        subscription = self._served[endpoint.subscription]
        stored = await self._partition.call("last_message")
        last, first = Position(*stored["position"]), Position(*stored["first"])
        log = subscription.compacted_log()
        if log.compacted is not None:
            first = min(first, log.first)
            last = last if last > log.compacted.horizon else log.last_kept
        if last < first:
            return False  # all there was is trimmed, with what waits to be granted
        core, loop = subscription.core, asyncio.get_running_loop()
        until = loop.time() + UNKNOWN_DEADLINE_S
        while (has_more := core.has_more(last)) is None and (left_s := until - loop.time()) > 0:
            # Blocks that consumers brought along from before a restart are read whether they have room or
            # not, and each reading ends with a turn.
            await subscription.turn.wait_run(left_s)
        # Deliveries that a carrier lost come when the consumer attaches again, perhaps after this answer.
        received = received if numbering == endpoint.numbering else 0
        # Deliveries that its connection has not taken yet are under way as well, or are sent again in vain.
        return has_more is not False or core.is_under_way(endpoint.incarnation, received)
