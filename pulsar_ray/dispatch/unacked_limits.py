"""How many messages a consumer and all consumers together may leave unacknowledged before dispatch stops."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.model.rate_limit import NO_LIMIT


class UnackedLimits:
    """A limit that was reached holds until half is acknowledged; 0 means no limit."""

    def __init__(self, settings: DispatchSettings, blocks: DispatchBlocks) -> None:
        self._settings = settings
        self._blocks = blocks
        self._in_force = self._limits()
        self.is_blocked = False
        """Nothing is dispatched until half of the subscription's limit is acknowledged."""

    @property
    def of_consumer(self) -> int:
        """How many a consumer may leave unacknowledged; 0 means no limit."""
        return self._settings.max_unacked_messages_per_consumer

    def room(self, consumer: Consumer) -> int:
        """How many messages a consumer may get now; 0 or less: none."""
        settings = self._settings
        room = consumer.room(settings.max_unacked_messages_per_consumer)
        limit = settings.max_unacked_messages_per_subscription
        if not limit:
            return room
        unacked = self._blocks.unacked_messages
        if self.is_blocked and unacked >= limit // 2:
            return 0
        self.is_blocked = False
        left = limit - unacked
        return room if room < left else left

    def room_of_all(self) -> int:
        """How many messages all consumers together may get until the subscription's limit."""
        limit = self._settings.max_unacked_messages_per_subscription
        return limit - self._blocks.unacked_messages if limit else NO_LIMIT

    def granted(self, consumer: Consumer) -> None:
        """Notice that a limit was reached."""
        settings = self._settings
        if 0 < settings.max_unacked_messages_per_consumer <= consumer.unacked:
            consumer.is_blocked = True
        if 0 < settings.max_unacked_messages_per_subscription <= self._blocks.unacked_messages:
            self.is_blocked = True

    def settings_changed(self, consumers: Iterable[Consumer]) -> None:
        """Block those that have reached a limit of now, and no others.

        Nothing is done if the limits are as before.
        """
        if self._limits() == self._in_force:
            return
        self._in_force = per_consumer, per_subscription = self._limits()
        self.is_blocked = 0 < per_subscription <= self._blocks.unacked_messages
        for consumer in consumers:
            consumer.is_blocked = 0 < per_consumer <= consumer.unacked

    def _limits(self) -> tuple[int, int]:
        settings = self._settings
        return settings.max_unacked_messages_per_consumer, settings.max_unacked_messages_per_subscription
