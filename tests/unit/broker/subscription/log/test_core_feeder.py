"""What a dispatcher's core learns of ledgers while it is fed behind the log's end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers
from pulsar_ray.broker.subscription.cursor_flusher import MemoryOnly
from pulsar_ray.broker.subscription.log.compacted_log import CompactedLog
from pulsar_ray.broker.subscription.log.core_feeder import CoreFeeder
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.format.frame import encode_frame_header
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, ManagedCursor
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.requests import Advanced

EPOCH = 7
FRAME_BYTES = 1000


class Log:
    """Ledgers of frames that hold one message each, as a partition tells of them."""

    def __init__(self) -> None:
        self.view = LogView()
        self._lasts: dict[int, int] = {}

    def append(self, ledger_id: int) -> None:
        """One more entry, in a new ledger if there is none of that id."""
        is_new = ledger_id not in self._lasts
        entry_id = self._lasts[ledger_id] = self._lasts.get(ledger_id, -1) + 1
        header = encode_frame_header(ledger_id, EPOCH, entry_id, entry_id - 1, 0, [(FRAME_BYTES, 1, 1)])
        segments = None
        if is_new:
            segments = [(i, 0, f"{i}", 0, (last + 2) * FRAME_BYTES, last) for i, last in self._lasts.items()]
        frame = (ledger_id, 0, (entry_id + 1) * FRAME_BYTES, header)
        self.view.advanced(
            Advanced(EPOCH, ledger_id, entry_id, 1, 0, segments, None, *self.view.last, [frame])
        )


class Fed:
    """A Shared consumer of a subscription at the start of a log."""

    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop, disk: DiskThread) -> None:
        cursor = ManagedCursor(CursorSubscription("s"), Position(1, -1))
        cursor.set_ledgers(log.view.ledgers)
        self.core = Dispatcher(cursor, DispatchSettings(), epoch=EPOCH, now_ms=0)
        self.core.attach_consumer(ConsumerSpec(1, "c", ConsumerType.Shared), 0)
        self.feeder = CoreFeeder(
            "s",
            self.core,
            CompactedLog(log.view, ""),
            ConnectedConsumers(EPOCH),
            MemoryOnly(),
            loop,
            disk,
            "",
            holds=True,
        )
        self._credit = 0

    def receive(self, messages: int) -> list[tuple[int, int]]:
        """Take so many messages: where they are stored."""
        self._credit += messages
        self.core.set_credit(1, self._credit, 0, 0)
        found: list[tuple[int, int]] = []
        while self.feeder.feed(lambda: None) | bool(grants := self.core.dispatch(0)):
            found += [(grant.block.ledger_id, grant.block.first_entry_id) for grant in grants]
        return found


class NoDisk(DiskThread):
    """Everything is in memory."""

    def __init__(self) -> None: ...


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_what_is_not_read_of_a_closed_ledger_is_not_taken_for_acknowledged(
    loop: asyncio.AbstractEventLoop,
) -> None:
    log = Log()
    log.append(1)
    fed = Fed(log, loop, NoDisk())
    for ledger_id in (1, 1, 1, 1, 2):
        log.append(ledger_id)
    assert fed.receive(1) == [(1, 0)]
    # By their ids, which another subscription gave out; (1, 2) to (1, 4) were not read yet.
    fed.core.acknowledge(1, [(1, 0, 1), (2, 0, 0)])
    assert fed.receive(10) == [(1, 2), (1, 3), (1, 4)]
    fed.core.acknowledge(1, [(1, 2, 4)])
    assert fed.core.cursor.mark_delete == Position(2, 0)
    assert fed.core.cursor.backlog() == 0


def test_entries_that_nobody_had_room_for_can_be_acknowledged(loop: asyncio.AbstractEventLoop) -> None:
    log = Log()
    log.append(1)
    fed = Fed(log, loop, NoDisk())
    for ledger_id in (1, 1, 2):
        log.append(ledger_id)
    fed.feeder.extend_to_end()
    fed.core.acknowledge(1, [(1, 1, 1), (2, 0, 0)])
    assert fed.receive(10) == [(1, 0), (1, 2)]


def test_the_backlog_counts_what_is_not_read_yet(loop: asyncio.AbstractEventLoop) -> None:
    log = Log()
    log.append(1)
    fed = Fed(log, loop, NoDisk())
    for ledger_id in (1, 1, 2, 2, 3):
        log.append(ledger_id)
    assert fed.receive(1) == [(1, 0)]
    assert fed.core.cursor.backlog() == 6
