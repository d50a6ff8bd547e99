"""The calls of open consumers to their subscription: seek, unsubscribe, progress.

Every call may come twice: its answer may have been lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.broker.subscription.consumers.delivery_progress import DeliveryProgress
from pulsar_ray.broker.subscription.consumers.repeated_calls import RepeatedCalls
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription


class ConsumerCalls:
    """Runs on the owner loop. `seek` and `unsubscribe` are the dispatcher's own."""

    def __init__(
        self,
        progress: DeliveryProgress,
        *,
        seek: Callable[[ServedSubscription, Any, bool], Coroutine[Any, Any, int]],
        unsubscribe: Callable[[ServedSubscription, ConsumerEndpoint], Awaitable[None]],
    ) -> None:
        self._progress = progress
        self._seek = seek
        self._unsubscribe = unsubscribe
        self._seeks = RepeatedCalls()

    async def call(
        self,
        method: str,
        subscription: ServedSubscription,
        endpoint: ConsumerEndpoint,
        arguments: dict[str, Any],
    ) -> Any:
        """Answer one of CONSUMER_CALLS."""
        methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "seek": self.seek,
            "check_unsubscribe": self.check_unsubscribe,
            "unsubscribe": self.unsubscribe,
            "last_message": self.last_message,
            "has_more": self._progress.has_more,
        }
        return await methods[method](subscription, endpoint, **arguments)

    async def seek(
        self,
        subscription: ServedSubscription,
        _endpoint: ConsumerEndpoint,
        seek_id: int,
        target: Any,
        inclusive: bool,
    ) -> int:
        """Start over at the target, once for each `seek_id`; returns the new generation."""
        sought: int = await self._seeks.once(seek_id, lambda: self._seek(subscription, target, inclusive))
        return sought

    async def check_unsubscribe(self, subscription: ServedSubscription, _endpoint: ConsumerEndpoint) -> None:
        """Raise BrokerMetadataError if the subscription has other consumers."""
        subscription.consumers.check_sole()

    async def unsubscribe(self, subscription: ServedSubscription, endpoint: ConsumerEndpoint) -> None:
        """Delete the subscription. Raises BrokerMetadataError if it has other consumers."""
        subscription.consumers.check_sole()
        await self._unsubscribe(subscription, endpoint)

    async def last_message(self, subscription: ServedSubscription, _endpoint: ConsumerEndpoint) -> Any:
        """Return the partition's last message."""
        return await self._progress.last_message(subscription)
