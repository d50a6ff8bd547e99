"""How far ahead of its consumers a dispatcher reads the log."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_ray.dispatch.consumer import Consumer
from pulsar_ray.dispatch.pending_acks import PendingAcks
from pulsar_ray.dispatch.returning import ReturningConsumers
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.dispatch.subscription_type import SubscriptionType

_MAX_MESSAGES = 65_536


class ReadAhead:
    """Twice what consumers could take, within a bound; more for Key_Shared."""

    def __init__(
        self,
        settings: DispatchSettings,
        pending: PendingAcks,
        returning: ReturningConsumers,
        consumers: Mapping[int, Consumer],
        kind: SubscriptionType,
    ) -> None:
        self._settings = settings
        self._pending = pending
        self._returning = returning
        self._consumers = consumers
        self._type = kind

    def messages_wanted(self) -> int:
        """How many messages to read and offer now."""
        limit = _MAX_MESSAGES
        if not self._returning.claims:
            room = 0
            for consumer in self._consumers.values():
                permits = consumer.credit - consumer.granted
                if permits > 0 and consumer.detached_until_ms is None:
                    room += permits
            ahead = 2 * room
            if room and self._type.keyed is not None:
                ahead = max(ahead, self._look_ahead())
            limit = min(ahead, limit)
        return max(limit - self._pending.waiting_messages, 0)

    def _look_ahead(self) -> int:
        """How many messages Key_Shared lets wait for their consumers, so that those of others get on.

        At that limit nothing is read until some of them can go: a consumer that takes nothing stops the
        others in the end, as in Pulsar, and `why_blocked` names it.
        """
        settings = self._settings
        limit = settings.look_ahead_messages_per_subscription
        of_consumers = settings.look_ahead_messages_per_consumer * len(self._consumers)
        if of_consumers and (not limit or of_consumers < limit):
            limit = of_consumers
        return limit or _MAX_MESSAGES
