"""Holds that dispatchers report as their subscriptions' mark-delete positions become durable."""

from __future__ import annotations

import asyncio
import functools

from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.managed_ledger.log.manifest_changes import ManifestChanges
from pulsar_ray.model.message_id import Position

REPORT_DELAY_S = 0.1
FULL_DISK_DELAY_S = 10.0


class ReportedHolds:
    """Gathers reports for 100 ms, and writes the last one of each subscription.

    A hold that was not written yet only keeps entries longer than needed.
    """

    def __init__(
        self, changes: ManifestChanges, writer: ManifestWriter, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._changes = changes
        self._writer = writer
        self._loop = loop
        self._reported: dict[int, Position] = {}
        self._timer: asyncio.TimerHandle | None = None

    def moved(self, number: int, position: Position) -> None:
        """Take a report for the subscription with this number."""
        self._reported[number] = position
        self._write_after(REPORT_DELAY_S)

    def _write_after(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._write)

    def _write(self) -> None:
        self._timer = None
        reported, self._reported = self._reported, {}
        for number, position in reported.items():
            if self._changes.has_subscription(number):
                refused = functools.partial(self._keep, number, position)
                self._writer.submit(self._changes.move_hold(number, position), refused)

    async def write_now(self) -> None:
        """Write what was reported by now, durably. Raises BrokerPersistenceError."""
        # Some may be on their way since just before.
        await self._writer.all_ended()
        reported, self._reported = self._reported, {}
        for number, position in reported.items():
            if self._changes.has_subscription(number):
                await self._writer.durable(self._changes.move_hold(number, position))

    def _keep(self, number: int, position: Position) -> None:
        """Write a refused hold later, unless it has moved on by then."""
        self._reported.setdefault(number, position)
        self._write_after(FULL_DISK_DELAY_S)
