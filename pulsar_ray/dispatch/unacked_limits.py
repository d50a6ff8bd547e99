"""How many messages a consumer and all consumers together may leave unacknowledged before dispatch stops."""

from __future__ import annotations

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer
from pulsar_ray.dispatch.settings import DispatchSettings


class UnackedLimits:
    """A limit that was reached holds until half is acknowledged; 0 means no limit."""

    def __init__(self, settings: DispatchSettings, blocks: DispatchBlocks) -> None:
        self._per_consumer = settings.max_unacked_messages_per_consumer
        self._per_subscription = settings.max_unacked_messages_per_subscription
        self._blocks = blocks
        self.is_blocked = False
        """Nothing is dispatched until half of the subscription's limit is acknowledged."""

    def room(self, consumer: Consumer) -> int:
        """How many messages a consumer may get now; 0 or less: none."""
        room = consumer.room(self._per_consumer)
        limit = self._per_subscription
        if not limit:
            return room
        unacked = self._blocks.unacked_messages
        if self.is_blocked and unacked >= limit // 2:
            return 0
        self.is_blocked = False
        left = limit - unacked
        return room if room < left else left

    def granted(self, consumer: Consumer) -> None:
        """Notice that a limit was reached."""
        if 0 < self._per_consumer <= consumer.unacked:
            consumer.is_blocked = True
        if 0 < self._per_subscription <= self._blocks.unacked_messages:
            self.is_blocked = True
