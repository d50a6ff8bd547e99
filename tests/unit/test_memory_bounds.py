"""Each thing that a process of the broker keeps takes no more memory than docs/memory.md says."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.format.block import encode_block, parse_block_header
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, ManagedCursor
from pulsar_ray.managed_ledger.log.manifest.manifest import Manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Lease,
    LedgerClosed,
    SegmentClosed,
    SegmentOpened,
    Subscription,
)
from pulsar_ray.managed_ledger.log.position_index import PositionIndex
from pulsar_ray.managed_ledger.log.producer_incarnations import WINDOW_BLOCKS, ProducerIncarnations
from pulsar_ray.managed_ledger.store.wake_times import WakeTimes
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import Position

COUNT = 5_000
LEDGER = 7 << 31
NOW_MS = 1_700_000_000_000
NO_LIMITS = DispatchSettings(max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0)


def kept_bytes(make: Callable[[], Any]) -> int:
    """The memory that is in use for what `make` returns.

    It is made once before: Python's own tables, that of interned names among them, grow by leaps.
    """
    make()
    gc.collect()
    tracemalloc.start()
    try:
        kept = make()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        del kept
        return size
    finally:
        tracemalloc.stop()


def cursor() -> ManagedCursor:
    made = ManagedCursor(CursorSubscription("s"), Position(1, -1))
    made.set_ledgers([(1, 4 * COUNT)])
    return made


def read_ahead(kind: ConsumerType = ConsumerType.Shared) -> Dispatcher:
    dispatcher = Dispatcher(cursor(), NO_LIMITS, epoch=1, now_ms=0)
    dispatcher.attach_consumer(ConsumerSpec(1, "c", kind), 0)
    blocks = [BlockRef(1, 0, 0, 100, entry, 1, 1, True) for entry in range(COUNT)]
    dispatcher.offer(ReadBlocks(blocks), dispatcher.reading_number)
    return dispatcher


def unacknowledged(kind: ConsumerType) -> Dispatcher:
    dispatcher = read_ahead(kind)
    dispatcher.set_credit(1, COUNT, 0, 0)
    grants = dispatcher.dispatch(0)
    assert dispatcher.blocks.pending_acks == COUNT
    dispatcher.set_credit(1, COUNT, grants[-1].number, 0)
    return dispatcher


def holes() -> ManagedCursor:
    """Too far from each other to share a word of bits, and not written yet."""
    made = ManagedCursor(CursorSubscription("s"), Position(1, -1))
    made.set_ledgers([(1, 1000 * COUNT)])
    for number in range(COUNT):
        made.acknowledge(1, 1000 * number + 1, 1000 * number + 1)
    return made


def failures() -> ManagedCursor:
    made = cursor()
    for number in range(COUNT):
        made.count_redelivery(1, 4 * number, 4 * number, 1 + number % 3)
    return made


def partly_acknowledged_batches() -> ManagedCursor:
    made = cursor()
    for number in range(COUNT):
        made.acknowledge_rows(Position(1, 4 * number), ((0, 2), (5, 6)), 8, is_durable=True)
    return made


def manifest(*kinds: Callable[[int], Any]) -> Manifest:
    made = Manifest(Path("/data/pulsar-ray/p/7"))
    for number in range(COUNT):
        for kind in kinds:
            made.apply(kind(number))
    return made


def subscriptions() -> Manifest:
    return manifest(lambda n: Subscription(n + 1, f"subscription-{n}", True, LEDGER, n, {}))


def ledgers() -> Manifest:
    return manifest(
        lambda n: SegmentOpened(LEDGER + n, 0, 0, NOW_MS),
        lambda n: SegmentClosed(LEDGER + n, 0, 1 << 20, 5000),
        lambda n: LedgerClosed(LEDGER + n, 5000, 1 << 20, NOW_MS + n),
    )


def leases() -> Manifest:
    return manifest(lambda n: Lease(n + 1, LEDGER, LEDGER + n, NOW_MS + n))


def places() -> PositionIndex:
    made = PositionIndex([], 0)
    for number in range(COUNT):
        made.add_frame(LEDGER, number // 30, (number % 30) << 22, 10_000 * number, NOW_MS + number)
    return made


def producer() -> ProducerIncarnations:
    """One that has sent for long."""
    made = ProducerIncarnations()
    for seq in range(4 * WINDOW_BLOCKS - 1):
        buffers = encode_block(
            b"x",
            incarnation=1,
            entry_seq=seq,
            first_sequence_id=seq,
            last_sequence_id=seq,
            publish_time_ms=NOW_MS,
        )
        made.record(parse_block_header(buffers[0]), LEDGER, seq, NOW_MS)
        made.keep()
    return made


def wake_times() -> WakeTimes:
    made = WakeTimes()
    for number in range(2 * COUNT):
        made.slept({number % COUNT: NOW_MS + number})
    return made


@pytest.mark.parametrize(
    ("make", "count", "most_bytes"),
    [
        (lambda: unacknowledged(ConsumerType.Shared), COUNT, 850),
        (lambda: unacknowledged(ConsumerType.Exclusive), COUNT, 850),
        (read_ahead, COUNT, 650),
        (holes, COUNT, 40),
        (failures, COUNT, 350),
        (partly_acknowledged_batches, COUNT, 600),
        (subscriptions, COUNT, 400),
        (ledgers, COUNT, 450),
        (leases, COUNT, 250),
        (places, COUNT, 220),
        (producer, 1, 250_000),
        (wake_times, COUNT, 330),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_nothing_takes_more_than_is_said(make: Callable[[], Any], count: int, most_bytes: int) -> None:
    each = kept_bytes(make) / count
    # Objects of Python 3.10 are larger.
    assert each <= (most_bytes if sys.version_info >= (3, 11) else 1.1 * most_bytes)
    assert each > most_bytes / 3, "the bound says more than it must: the page, too"
