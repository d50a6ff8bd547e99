"""How far ahead of its consumers a dispatcher reads the log."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer
from pulsar_ray.dispatch.policies.subscription_type import SubscriptionType
from pulsar_ray.dispatch.returning_consumers import ReturningConsumers
from pulsar_ray.dispatch.settings import DispatchSettings

_MAX_MESSAGES = 65_536
_MOST_DUE_MESSAGES = 8_192


class ReadAhead:
    """Reads twice what consumers could take, within a bound; more for Key_Shared.

    For Key_Shared it comes in large portions.

    Keys of many blocks together cost a fraction of what they cost block by block.
    """

    def __init__(
        self,
        settings: DispatchSettings,
        blocks: DispatchBlocks,
        returning: ReturningConsumers,
        consumers: Mapping[int, Consumer],
        kind: SubscriptionType,
    ) -> None:
        self._settings = settings
        self._blocks = blocks
        self._returning = returning
        self._consumers = consumers
        self._type = kind

    def messages_wanted(self) -> int:
        """How many messages to read and offer now."""
        limit, portion = _MAX_MESSAGES, 0
        if not self._returning.claims:
            room = 0
            for consumer in self._consumers.values():
                permits = consumer.credit - consumer.granted
                if permits > 0:
                    room += permits
            limit = min(2 * room, limit)
            keyed = self._type.keyed
            if room and keyed is not None:
                limit = min(max(limit, self._look_ahead()), _MAX_MESSAGES)
                portion = limit // 4
                if 2 * self._blocks.waiting_messages > limit and not keyed.is_short:
                    return 0
        wanted = limit - self._blocks.waiting_messages
        return max(wanted, portion) if wanted > 0 else 0

    def due_wanted(self) -> int:
        """How many delayed messages to take in that are due.

        They are at hand beside what is read ahead, so that neither holds the other up.
        """
        if self._returning.claims or self._returning.awaited:
            return 0
        room = sum(max(consumer.permits, 0) for consumer in self._consumers.values())
        if not room:
            return 0
        limit = 2 * room
        if self._type.keyed is not None:
            limit = max(limit, self._look_ahead())
        left = 2 * min(limit, _MAX_MESSAGES) - self._blocks.waiting_messages
        return max(min(room, left, _MOST_DUE_MESSAGES), 0)

    def _look_ahead(self) -> int:
        """Return how many messages Key_Shared lets wait, so that other consumers get on.

        At that limit nothing is read until some of them can go: a consumer that takes nothing stops the
        others in the end, as in Pulsar, and `why_blocked` names it. The last portion may go a quarter beyond.
        """
        settings = self._settings
        limit = settings.look_ahead_messages_per_subscription
        of_consumers = settings.look_ahead_messages_per_consumer * len(self._consumers)
        if of_consumers and (not limit or of_consumers < limit):
            limit = of_consumers
        return limit or _MAX_MESSAGES
