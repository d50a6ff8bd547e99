"""Making a cursor durable: in grouped writes, or at once for a receipt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.serving.shipping_link import ShippingLink
from pulsar_ray.errors import BrokerPersistenceError, Fenced, PulsarException, SessionLost
from pulsar_ray.lane.waiting import within
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorFlush, CursorStore
from pulsar_ray.model.message_id import Position

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 0.1
CLOSE_WAIT_S = 5.0


class CursorDurability(Protocol):
    """Makes the changes of one subscription's cursor durable."""

    is_durable: bool

    async def flushed(self, version: int, *, at_once: bool = True) -> None:
        """Wait until this version of the cursor is durable.

        Without `at_once` that is by the next grouped write that succeeds: one that fails raises nothing, and
        at the end of the subscription the wait is cancelled. The client says such an acknowledgment, which
        was not answered, again to the next dispatcher.
        """

    def flush_soon(self) -> None:
        """Write the changes with the next grouped write."""

    async def close(self) -> None:
        """Write all changes and give the cursor's directory up; later changes stay in memory."""


class MemoryOnly:
    """The durability of a non-durable cursor: it leaves nothing behind."""

    is_durable = False

    async def flushed(self, version: int, *, at_once: bool = True) -> None:
        """Wait for nothing."""

    def flush_soon(self) -> None:
        """Write nothing."""

    async def close(self) -> None:
        """Write nothing."""


class CursorFlusher:
    """Writes a cursor on its disk thread, one write at a time.

    Runs on the owner loop.

    `on_mark_delete` is called with each mark-delete position once it is durable.
    """

    is_durable = True

    def __init__(
        self,
        name: str,
        store: CursorStore,
        loop: asyncio.AbstractEventLoop,
        disk: DiskThread,
        *,
        on_mark_delete: Callable[[Position], None],
        on_fatal: Callable[[BaseException], None],
        shipping: ShippingLink | None = None,
    ) -> None:
        self._name = name
        self._shipping = shipping
        self._settled_version = store.durable_version if shipping is None else -1
        """Up to here all is durable enough, also in the object store."""
        self._store = store
        self._loop = loop
        self._disk = disk
        self._on_mark_delete = on_mark_delete
        self._on_fatal = on_fatal
        self._flush_timer: asyncio.TimerHandle | None = None
        self._is_flushing = False
        self._is_closed = False
        self._waiters: list[tuple[int, bool, asyncio.Future[None]]] = []
        if shipping is not None:
            # Acknowledgments that a start found may not be there yet.
            shipping.when_durable(partial(self._durable, store.durable_version, None))

    async def flushed(self, version: int, *, at_once: bool = True) -> None:
        if self._settled_version >= version:
            return
        if self._is_closed:
            raise self._left()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((version, at_once, future))
        if at_once:
            self._flush()
        else:
            self.flush_soon()
        await future

    def flush_soon(self) -> None:
        if self._flush_timer is None and not self._is_closed:
            self._flush_timer = self._loop.call_later(FLUSH_INTERVAL_S, self._flush_timed)

    def _flush_timed(self) -> None:
        self._flush_timer = None
        self._flush()

    def _flush(self) -> None:
        store = self._store
        if self._is_flushing or self._is_closed:
            return
        flush = store.begin_flush()
        if flush is None:
            self._settle(self._settled_version)
            return
        self._is_flushing = True
        self._disk.submit(flush.run, partial(self._flush_done, store, flush))

    def _flush_done(
        self, store: CursorStore, flush: CursorFlush, _: None, error: BaseException | None
    ) -> None:
        self._is_flushing = False
        if isinstance(error, Fenced):
            self._on_fatal(error)
            return
        if error is not None:
            store.fail_flush(flush)
            logger.error("cursor of %s: %s", self._name, error)
            grouped = [waiter for waiter in self._waiters if not waiter[1]]
            self._fail_waiters(BrokerPersistenceError(f"the cursor could not be written: {error}"))
            self._waiters = grouped
            self.flush_soon()
            return
        before = store.durable_mark_delete
        store.finish_flush(flush)
        moved = store.durable_mark_delete if store.durable_mark_delete != before else None
        durable = partial(self._durable, store.durable_version, moved)
        if self._shipping is None:
            durable()
        else:
            self._shipping.when_durable(durable)
        if any(at_once for _, at_once, _ in self._waiters):
            self._flush()
        elif self._waiters:
            self.flush_soon()

    def _durable(self, version: int, mark_delete: Position | None) -> None:
        if mark_delete is not None:
            self._on_mark_delete(mark_delete)
        self._settled_version = max(version, self._settled_version)
        self._settle(self._settled_version)

    def _settle(self, version: int) -> None:
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            wanted, _, future = waiter
            if wanted > version:
                self._waiters.append(waiter)
            elif not future.done():
                future.set_result(None)

    def _left(self) -> SessionLost:
        # To the consumer, which says it again to the next dispatcher: it is this one that has ended.
        return SessionLost(f"{self._name} is served here no more: attach again")

    def _fail_waiters(self, refusal: PulsarException) -> None:
        waiting, self._waiters = self._waiters, []
        for _, at_once, future in waiting:
            if at_once and not future.done():
                future.set_exception(refusal)

    async def close(self) -> None:
        if self._is_closed:
            return
        try:
            # The object store may be away for long; what is synced here is shipped later.
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self.flushed(self._store.cursor.version), CLOSE_WAIT_S)
        finally:
            # A write in a directory that was given up would look like one of a former owner.
            self._is_closed = True
            if self._flush_timer is not None:
                self._flush_timer.cancel()
            grouped = [future for _, at_once, future in self._waiters if not at_once]
            self._fail_waiters(self._left())
            for future in grouped:
                future.cancel()
            await self._disk.run(self._store.close)
            if self._shipping is not None:
                self._shipping.close()
