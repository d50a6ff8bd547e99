"""Carries out changes of a partition's manifest, on the disk thread."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest_changes import ManifestChanges
from pulsar_ray.model.message_id import Position

logger = logging.getLogger(__name__)


class ManifestWriter:
    """Submits changes on the owner loop, and settles them there.

    A full disk refuses a change; any other error is fatal where nobody waits for it.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        loop: asyncio.AbstractEventLoop,
        disk: DiskThread,
        on_fatal: Callable[[BaseException], None],
        when_durable: Callable[[Callable[[], None]], None],
    ) -> None:
        self._ledger = ledger
        self._loop = loop
        self._disk = disk
        self._on_fatal = on_fatal
        self._when_durable = when_durable
        """Calls back when all that the disk has taken is durable enough."""

    def submit(self, change: Any, on_refused: Callable[[], None] = lambda: None) -> None:
        """Carry out a change that nobody waits for.

        `on_refused` is called if the disk is full.
        """
        if change is None:
            return

        def done(_result: Any, error: BaseException | None) -> None:
            outcome = self._settled(change, error)
            if isinstance(outcome, BrokerPersistenceError):
                logger.warning("%s", outcome)
                on_refused()
            elif isinstance(outcome, BaseException):
                self._on_fatal(outcome)

        self._disk.submit(change.run, done)

    async def durable(self, change: Any) -> Any:
        """Carry out a change and return its result, durably.

        The ledger takes in the outcome also when nobody waits for it any more. Raises BrokerPersistenceError
        if the disk refused the change: then it is not in effect.
        """
        if change is None:
            return None
        ended: asyncio.Future[Any] = self._loop.create_future()

        def done(_result: Any, error: BaseException | None) -> None:
            outcome = self._settled(change, error)
            if ended.cancelled():
                return
            if isinstance(outcome, BaseException):
                ended.set_exception(outcome)
            else:
                ended.set_result(outcome)

        self._disk.submit(change.run, done)
        return await ended

    async def confirmed(self, change: Any) -> Any:
        """Carry out a change as `durable` does, and wait for the object store.

        For changes that somebody is told of. The others may be missing where the partition comes up again.
        """
        result = await self.durable(change)
        shipped: asyncio.Future[None] = self._loop.create_future()
        self._when_durable(lambda: None if shipped.done() else shipped.set_result(None))
        await shipped
        return result

    async def all_ended(self) -> None:
        """Wait until all changes that were submitted by now are carried out, or refused."""
        ended: asyncio.Future[None] = self._loop.create_future()
        self._disk.submit(lambda: None, lambda *_: None if ended.done() else ended.set_result(None))
        await ended

    def _settled(self, change: Any, error: BaseException | None) -> Any:
        """Settle a change with the ledger; returns its result, or the error to raise."""
        if error is None:
            return self._ledger.changes.finish(change)
        self._ledger.changes.fail(change)
        if isinstance(error, OSError):
            return BrokerPersistenceError(f"{self._ledger.directory}: the disk refused a change: {error}")
        return error


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
