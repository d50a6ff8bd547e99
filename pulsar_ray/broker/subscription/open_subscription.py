"""A subscription as its dispatcher's server sees one, whether its topic is stored or not."""

from __future__ import annotations

from typing import Protocol

from pulsar_ray.broker.figures.actor_report import Figures
from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers, ConsumerEndpoint
from pulsar_ray.session.requests import (
    Acknowledge,
    ConsumerOpened,
    Credit,
    NegativeAcknowledge,
    OpenConsumer,
    RedeliverUnacknowledged,
    Unreadable,
)
from pulsar_ray.session.session_table import Session

SettleRequest = Acknowledge | NegativeAcknowledge | RedeliverUnacknowledged | Unreadable
"""A consumer's request about messages that it was sent."""


class OpenSubscription(Protocol):
    """Serves the consumers of one subscription; all methods run on the owner loop."""

    name: str
    consumers: ConnectedConsumers

    def figures(self) -> Figures:
        """Return what the metrics have of it."""

    @property
    def is_busy(self) -> bool:
        """Whether it cannot sleep: consumers are awaited, or have something to get or to hold."""

    async def open_consumer(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        """Attach a consumer, or attach it again.

        Raises ConsumerBusy, also for one consumer too many, and SessionLost if the session ended meanwhile.
        """

    def detach(self, endpoint: ConsumerEndpoint, *, crashed: bool) -> None:
        """Remove a consumer whose session has ended, with a crash or in order."""

    def end_deliveries(self, endpoint: ConsumerEndpoint) -> bool:
        """Grant nothing more to a consumer whose session has ended.

        Returns whether messages fail if it has crashed.
        """

    async def close_consumer(self, endpoint: ConsumerEndpoint) -> None:
        """Remove a consumer that left by itself; durable when this returns."""

    def credit(self, endpoint: ConsumerEndpoint, request: Credit) -> None:
        """Take a report of room and progress."""

    def settle(self, endpoint: ConsumerEndpoint, request: SettleRequest) -> None:
        """Carry out a request about messages that a consumer was sent.

        One with an id is answered.
        """

    def nacks_wait(self, endpoint: ConsumerEndpoint, waiting: int, due_in_ms: int) -> None:
        """Note how many failed messages wait at a consumer, and when the first comes again."""

    async def wait_for_known(self) -> None:
        """Wait until consumers from before a restart are back, or their grace is over."""

    def await_no_more(self, incarnation: int) -> None:
        """Wait no longer for a consumer from before a restart, which was closed meanwhile."""

    def active_in_the_way(self) -> Session | None:
        """Return the active consumer's session, if other sessions' consumers could get its messages."""

    def settings_changed(self) -> None:
        """Let the settings of now hold."""
