"""Empties a partition for an administrator: its backlogs, or all that is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.clock import Clock
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.topic_name import TopicName, check_user_may_change

_POLL_S = 0.005


class BacklogClearing:
    """Acknowledges in place of subscriptions, as an expiry does (ADR 0049).

    None of them is started. Belongs to the owner loop. `on_expired` is called with the numbers of
    subscriptions once it is durable.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        clock: Clock,
        on_expired: Callable[[Sequence[int]], None],
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._clock = clock
        self._on_expired = on_expired

    async def clear(self, subscription: str) -> list[str]:
        """Acknowledge all that is stored by now, durably, for a subscription; "" for all.

        Returns the names of those that had a backlog. One that is not there has none.
        """
        changes = self._ledger.changes
        names = {
            known.number: known.name
            for known in changes.subscriptions()
            if known.is_durable and subscription in ("", known.name)
        }
        change = changes.expire(names, self._ledger.readable_position)
        if change is None:
            return []
        numbers = await self._writer.confirmed(change)
        self._on_expired(numbers)
        return sorted(names[number] for number in numbers)

    async def truncate(self) -> None:
        """Delete all that is stored by now, whatever retention keeps, and give its space back.

        Only what a lease covers stays, until that ends. Raises NotAllowedError for a system topic.
        """
        check_user_may_change(TopicName.parse(self._ledger.identity.topic))
        changes = self._ledger.changes
        ended = changes.end_log_soon()
        while not changes.has_ended(ended):
            await asyncio.sleep(_POLL_S)
        await self.clear("")
        await self._writer.confirmed(changes.truncate(self._clock.now_ms()))
