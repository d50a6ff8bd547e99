"""The client, as its consumers and readers know it."""

from __future__ import annotations

from typing import Any, Protocol

from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.transport.actor_link import ActorLink


class ConsumerClient(Protocol):
    """Opens consumers and readers, and forgets them when they have closed."""

    operation_timeout_s: float

    def consumer_from(self, options: ConsumerOptions, consumer: Any = None) -> Any:
        """Open a consumer, which may be one that was unpickled. Raises what `Client.subscribe` raises."""

    def producer_from(self, options: ProducerOptions) -> Any:
        """Open a producer. Raises what `Client.create_producer` raises."""

    def keeps_nothing(self, topic: str) -> bool:
        """Whether a topic has neither a durable subscription nor retention."""

    def reader_from(self, arguments: dict[str, Any], reader: Any) -> Any:
        """Open an unpickled reader. Raises what `Client.create_reader` raises."""

    def forget(self, closed: Any) -> None:
        """Drop a consumer or reader that has closed itself."""

    def forget_dispatchers(self, links: list[ActorLink]) -> None:
        """Have the dispatchers of a deleted subscription leave; their names are free when this returns."""
