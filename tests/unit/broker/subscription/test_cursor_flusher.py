"""Making a cursor durable, up to its end."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription import cursor_flusher
from pulsar_ray.broker.subscription.cursor_flusher import CursorFlusher
from pulsar_ray.errors import BrokerPersistenceError, SessionLost
from pulsar_ray.ledger.disk import SYSTEM_DISK
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore, read_cursor
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription
from pulsar_ray.model.message_id import Position

LEDGER = 7


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CursorStore]:
    store = CursorStore.create(tmp_path / "cursor", CursorSubscription("s"), Position(LEDGER, -1))
    store.cursor.set_ledgers([(LEDGER, 100)])
    yield store
    store.close()


class Flushing:
    """A flusher on the running loop, and what it said."""

    def __init__(self, store: CursorStore) -> None:
        self.durable: list[Position] = []
        self.fatal: list[BaseException] = []
        loop = asyncio.get_running_loop()
        self.disk = DiskThread(loop, "disk")
        self.flusher = CursorFlusher(
            "s", store, loop, self.disk, on_mark_delete=self.durable.append, on_fatal=self.fatal.append
        )


def test_what_changes_after_the_end_is_neither_written_nor_fatal(
    store: CursorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_flusher, "FLUSH_INTERVAL_S", 0.01)

    async def steps() -> None:
        flushing = Flushing(store)
        store.cursor.acknowledge_up_to(Position(LEDGER, 3))
        flushing.flusher.flush_soon()
        await flushing.flusher.close()
        store.cursor.acknowledge_up_to(Position(LEDGER, 9))
        flushing.flusher.flush_soon()
        with pytest.raises(SessionLost, match="s is served here no more: attach again"):
            await flushing.flusher.flushed(store.cursor.version)
        await flushing.flusher.close()
        await asyncio.sleep(0.05)  # five times the interval: a timer that is left would have run
        flushing.disk.stop()
        assert flushing.fatal == []
        assert flushing.durable == [Position(LEDGER, 3)]

    asyncio.run(asyncio.wait_for(steps(), 20))
    stored = read_cursor(store._owner.path)
    assert stored is not None
    assert stored.mark_delete == Position(LEDGER, 3)


def test_grouped_acknowledgments_outlast_a_disk_that_fails(
    store: CursorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_flusher, "FLUSH_INTERVAL_S", 0.01)
    fails = monkeypatch.context()

    async def steps() -> None:
        flushing = Flushing(store)
        with fails as patch:
            patch.setattr(SYSTEM_DISK, "fdatasync", _fail)
            store.cursor.acknowledge_up_to(Position(LEDGER, 3))
            grouped = asyncio.create_task(flushing.flusher.flushed(store.cursor.version, at_once=False))
            await asyncio.sleep(0)
            # Whoever asked for a receipt is told that there is none.
            with pytest.raises(BrokerPersistenceError, match="could not be written"):
                await flushing.flusher.flushed(store.cursor.version)
            assert not grouped.done(), "a client drops what was refused: it would never say it again"
        await grouped
        assert flushing.durable == [Position(LEDGER, 3)]
        await flushing.flusher.close()
        flushing.disk.stop()

    asyncio.run(asyncio.wait_for(steps(), 20))


def test_a_grouped_acknowledgment_is_not_answered_by_a_close_that_fails(
    store: CursorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SYSTEM_DISK, "fdatasync", _fail)

    async def steps() -> None:
        flushing = Flushing(store)
        store.cursor.acknowledge_up_to(Position(LEDGER, 3))
        grouped = asyncio.create_task(flushing.flusher.flushed(store.cursor.version, at_once=False))
        await asyncio.sleep(0)
        with pytest.raises(BrokerPersistenceError):
            await flushing.flusher.close()
        with pytest.raises(asyncio.CancelledError):
            await grouped
        flushing.disk.stop()

    asyncio.run(asyncio.wait_for(steps(), 20))


def _fail(_fd: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
