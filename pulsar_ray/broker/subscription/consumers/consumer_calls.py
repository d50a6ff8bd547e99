"""What a consumer that is open asks of its subscription, besides messages, at the dispatcher.

Every call may come twice: its answer may have been lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.broker.subscription.consumers.repeated_calls import RepeatedCalls
from pulsar_ray.broker.subscription.log.partition_follower import PartitionFollower
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.model.position import Position

UNKNOWN_DEADLINE_S = 2.0
UNKNOWN_S = 0.002


class ConsumerCalls:
    """Runs on the owner loop. `seek` and `unsubscribe` are the dispatcher's own."""

    def __init__(
        self,
        follower: PartitionFollower,
        *,
        seek: Callable[[ServedSubscription, Any, bool], Coroutine[Any, Any, int]],
        unsubscribe: Callable[[ServedSubscription, ConsumerEndpoint], Awaitable[None]],
    ) -> None:
        self._follower = follower
        self._seek = seek
        self._unsubscribe = unsubscribe
        self._seeks = RepeatedCalls()

    async def call(
        self, method: str, host: ServedSubscription, endpoint: ConsumerEndpoint, arguments: dict[str, Any]
    ) -> Any:
        """One of CONSUMER_CALLS."""
        methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "seek": self.seek,
            "check_unsubscribe": self.check_unsubscribe,
            "unsubscribe": self.unsubscribe,
            "last_message": self.last_message,
            "has_more": self.has_more,
        }
        return await methods[method](host, endpoint, **arguments)

    async def seek(
        self,
        host: ServedSubscription,
        _endpoint: ConsumerEndpoint,
        seek_id: int,
        target: Any,
        inclusive: bool,
    ) -> int:
        """Start over there, once for each `seek_id`; the new generation."""
        sought: int = await self._seeks.once(seek_id, lambda: self._seek(host, target, inclusive))
        return sought

    async def check_unsubscribe(self, host: ServedSubscription, endpoint: ConsumerEndpoint) -> None:
        """Raise BrokerMetadataError if it has others."""
        host.check_sole(endpoint)

    async def unsubscribe(self, host: ServedSubscription, endpoint: ConsumerEndpoint) -> None:
        """Delete the subscription. Raises BrokerMetadataError if it has other consumers."""
        host.check_sole(endpoint)
        await self._unsubscribe(host, endpoint)

    async def last_message(self, _host: ServedSubscription, _endpoint: ConsumerEndpoint) -> Any:
        """Of the partition."""
        return await self._follower.call("last_message")

    async def has_more(
        self, host: ServedSubscription, endpoint: ConsumerEndpoint, numbering: int, received: int
    ) -> bool:
        """Whether anything comes to a consumer that has got this far, of what is stored by now."""
        stored = await self._follower.call("last_message")
        last = Position(*stored["position"])
        if last < Position(*stored["first"]):
            return False  # all there was is trimmed, with what waits to be granted
        loop = asyncio.get_running_loop()
        until = loop.time() + UNKNOWN_DEADLINE_S
        while (has_more := host.core.has_more(last)) is None and loop.time() < until:
            # What consumers brought along from before a restart is read whether they have room or not.
            await asyncio.sleep(UNKNOWN_S)
        # What a carrier lost comes when the consumer attaches again, which may be after this answer.
        received = received if numbering == endpoint.numbering else 0
        # What its connection has not taken yet is under way as well, or is sent again in vain.
        return has_more is not False or host.core.is_under_way(endpoint.incarnation, received)
