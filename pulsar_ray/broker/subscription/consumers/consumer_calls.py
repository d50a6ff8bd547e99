"""The calls of open consumers to their subscription: seek, unsubscribe, progress.

Every call may come twice: its answer may have been lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.broker.subscription.consumers.delivery_progress import DeliveryProgress
from pulsar_ray.broker.subscription.consumers.repeated_calls import RepeatedCalls
from pulsar_ray.broker.subscription.open_subscription import OpenSubscription


class ConsumerCalls:
    """Runs on the owner loop. `seek` and `unsubscribe` are the dispatcher's own.

    `topic` is its partition.
    """

    def __init__(
        self,
        progress: DeliveryProgress,
        topic: str,
        *,
        seek: Callable[[str, Any, bool], Coroutine[Any, Any, int]],
        unsubscribe: Callable[[OpenSubscription, ConsumerEndpoint], Awaitable[None]],
    ) -> None:
        self._progress = progress
        self._topic = topic
        self._seek = seek
        self._unsubscribe = unsubscribe
        self._seeks = RepeatedCalls()

    async def call(
        self,
        method: str,
        subscription: OpenSubscription,
        endpoint: ConsumerEndpoint,
        arguments: dict[str, Any],
    ) -> Any:
        """Answer one of CONSUMER_CALLS."""
        methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "seek": self.seek,
            "check_unsubscribe": self.check_unsubscribe,
            "unsubscribe": self.unsubscribe,
            "last_message": self.last_message,
            "has_more": self.has_more,
            "report_moves": self.report_moves,
            "report_nacks": self.report_nacks,
        }
        return await methods[method](subscription, endpoint, **arguments)

    async def seek(
        self,
        subscription: OpenSubscription,
        _endpoint: ConsumerEndpoint,
        seek_id: int,
        target: Any,
        inclusive: bool,
    ) -> int:
        """Start over at the target, once for each `seek_id`; returns the new generation."""
        sought: int = await self._seeks.once(
            seek_id, lambda: self._seek(subscription.name, target, inclusive)
        )
        return sought

    async def check_unsubscribe(self, subscription: OpenSubscription, endpoint: ConsumerEndpoint) -> None:
        """Raise BrokerMetadataError if others are connected, those that slept included."""
        await subscription.wait_for_known()
        subscription.consumers.check_sole(
            endpoint, f"the subscription {subscription.name!r} of {self._topic}"
        )

    async def unsubscribe(self, subscription: OpenSubscription, endpoint: ConsumerEndpoint) -> None:
        """Delete the subscription. Raises BrokerMetadataError if it has other consumers."""
        await self.check_unsubscribe(subscription, endpoint)
        await self._unsubscribe(subscription, endpoint)

    async def last_message(self, _subscription: OpenSubscription, _endpoint: ConsumerEndpoint) -> Any:
        """Return the partition's last message."""
        return await self._progress.last_message()

    async def has_more(
        self, _subscription: OpenSubscription, endpoint: ConsumerEndpoint, numbering: int, received: int
    ) -> bool:
        """Return whether anything stored by now is still to come to the consumer."""
        return await self._progress.has_more(endpoint, numbering, received)

    async def report_moves(
        self, _subscription: OpenSubscription, endpoint: ConsumerEndpoint, moved: int, error: str
    ) -> None:
        """Take a count of messages moved to a dead letter topic, for the stats.

        `error` is the reason why more were not moved. A late one is made good by the next.
        """
        endpoint.dead_letters = (moved, error)

    async def report_nacks(
        self, subscription: OpenSubscription, endpoint: ConsumerEndpoint, waiting: int, due_in_ms: int
    ) -> None:
        """Take a count of messages that wait at the consumer for their negative acknowledgment's delay.

        It is for people alone, who ask why messages wait.
        """
        subscription.nacks_wait(endpoint, waiting, due_in_ms)
