"""Making a cursor durable, up to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription import cursor_flusher
from pulsar_ray.broker.subscription.cursor_flusher import CursorFlusher
from pulsar_ray.errors import AlreadyClosed
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore, read_cursor
from pulsar_ray.managed_ledger.cursor.managed_cursor import Subscription
from pulsar_ray.model.position import Position

LEDGER = 7


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CursorStore]:
    store = CursorStore.create(tmp_path / "cursor", Subscription("s"), Position(LEDGER, -1))
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
        with pytest.raises(AlreadyClosed, match="s is closed"):
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
