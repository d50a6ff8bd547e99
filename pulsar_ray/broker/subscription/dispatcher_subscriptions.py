"""The subscriptions of one dispatcher, as its server sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pulsar_ray.broker.figures.actor_report import Figures
from pulsar_ray.broker.subscription.consumers.delivery_progress import DeliveryProgress
from pulsar_ray.broker.subscription.open_subscription import OpenSubscription
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.requests import OpenConsumer


class DispatcherSubscriptions(Protocol):
    """One durable subscription, or all non-durable ones of a partition, which they follow.

    All methods run on the owner loop.
    """

    epoch: int
    """The dispatcher's, which attachments answer."""
    directory: str
    """The partition's, for consumers that read its files; "" if there are none."""
    served: Mapping[str, OpenSubscription]
    """The subscriptions by name."""
    log_end: Position
    """The last entry that this dispatcher knows to be durable."""

    was_created: bool
    """Whether the durable subscription came into being with this dispatcher."""
    can_park: bool
    """Whether consumers lose nothing while the dispatcher sleeps."""

    @property
    def acknowledged_entries(self) -> int:
        """How many entries above mark-delete positions are acknowledged one by one."""

    def problem(self) -> str:
        """Say why messages do not go out; empty if nothing is known to be wrong."""

    @property
    def progress(self) -> DeliveryProgress:
        """Answers consumers how far their topic is."""

    @property
    def reach(self) -> tuple[str, str]:
        """A file beside the partition's segments, and its content.

        A client that can read the content can read the segments.
        """

    async def start(self) -> None:
        """Attach to the partition, open the durable subscription and follow. Raises refusals of either."""

    def describe_found(self) -> str:
        """Say in words what was found at the start."""

    def troubles(self) -> dict[str, str]:
        """Say of each subscription, by its name, that something is wrong with, what it is."""

    async def learn_end(self) -> Any:
        """Return once every entry is known that was stored when this was called."""

    async def prepare_open(self) -> None:
        """Return once entries that are published from now on come here."""

    async def open_reader(self, request: OpenConsumer) -> OpenSubscription:
        """Return the non-durable subscription of a consumer that opens; make it if there is none."""

    def forget_reader(self, subscription: OpenSubscription) -> None:
        """Forget a non-durable subscription once nobody is connected to it."""

    def update_arming(self, *, is_opening: bool) -> None:
        """Have the partition send new entries if somebody waits for them; `is_opening`: a consumer opens."""

    def tick(self) -> None:
        """Sample, warn, and repeat to the partition what may have been lost; once a second."""

    async def seek(self, name: str, target: Any, inclusive: bool) -> int:
        """Start a subscription over at a target; returns the new generation."""

    async def administer(self, name: str, arguments: dict[str, Any]) -> Any:
        """Carry out an administrator's call for the durable subscription."""

    async def remove(self) -> None:
        """Delete the durable subscription with its consumers, durably. Raises the partition's refusal."""

    async def look_around(self) -> None:
        """Learn the partition's state of now.

        It sends news only to dispatchers that wait for them.
        """

    def stats(self) -> dict[str, dict[str, Any]]:
        """Describe each subscription by its name."""

    def figures(self) -> Figures:
        """Return what the metrics have of all of them, readers that are gone included."""

    async def settle(self) -> None:
        """Make cursors durable, and the partition know of it. Raises BrokerPersistenceError."""

    def leave(self) -> None:
        """Follow the partition no longer."""

    async def close(self) -> None:
        """Make cursors durable, and leave."""
