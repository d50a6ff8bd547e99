"""Measure a dispatcher's state: a million unacknowledged entries, a hundred thousand holes.

The core with its cursor on disk, in this process, fed like an actor feeds it: what is compared is its own
CPU time, which a consumer's would cover otherwise.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from benchmarks.measuring.environment import Environment
from benchmarks.measuring.measure import p50
from benchmarks.measuring.results import Row
from pulsar_ray.broker.serving.owner_loop import GC_THRESHOLDS
from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import Position

UNACKED = 1_000_000
HOLES = 100_000
SLICE_BLOCKS = 200
"""Or so many thousand entries, stored 1,000 at a time."""
FLUSH_STEPS = 100
ROUNDS = 9
LEAST_RATE = 0.7
NO_LIMITS = DispatchSettings(max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0)
HOLDER, WORKER = 1, 2
T = TypeVar("T")


def run(env: Environment) -> list[Row]:
    """Dispatchers of different states take turns in handing out and acknowledging further messages."""
    unacked, holes = env.count(UNACKED, 10_000), env.count(HOLES, 1_000)
    gc.set_threshold(*GC_THRESHOLDS)
    with env.directory() as path:
        hole_bytes = _sized(lambda: _cursor_with_holes(path / "cursor", holes))[1]
        empty = [_Core(path / "empty", 1000), _Core(path / "empty-single", 1)]
        single, single_bytes = _sized(lambda: _holding(path / "single", 1, unacked))
        held = _holding(path / "held", 1000, unacked)
        holed = _with_holes(path / "holed", holes)
        many = f"{unacked:,} unacknowledged entries"
        return [
            _row(f"{many}, stored 1,000 at a time", held, empty[0], "they share a block's memory"),
            _row(f"{many}, stored one by one", single, empty[1], f"{single_bytes / unacked:.0f} bytes each"),
            _row(
                f"{holes:,} ack holes", holed, empty[0], f"{hole_bytes / holes:.0f} bytes of cursor per hole"
            ),
        ]


class _Core:
    """A Shared subscription on a log of entries that were stored `rows` at a time."""

    def __init__(self, directory: Path, rows: int) -> None:
        self._store = CursorStore.create(directory, CursorSubscription("bench"), Position(1, -1))
        self._rows = rows
        self._next_entry = 0
        self._steps = 0
        self._credit = {HOLDER: 0, WORKER: 0}
        self._received = {HOLDER: 0, WORKER: 0}
        self.core = Dispatcher(self._store.cursor, NO_LIMITS, epoch=1, now_ms=0)
        for consumer_id in self._credit:
            self.core.attach_consumer(ConsumerSpec(consumer_id, "bench", ConsumerType.Shared), 0)

    def hand_out(self, consumer_id: int, entries: int) -> int:
        """Let a consumer have the next entries of the log; the first of them."""
        core, first, rows = self.core, self._next_entry, self._rows
        self._next_entry = end = first + entries
        core.cursor.set_ledgers([(1, end - 1)])
        self._credit[consumer_id] += entries
        core.set_credit(consumer_id, self._credit[consumer_id], self._received[consumer_id], 0)
        blocks = [BlockRef(1, 0, 0, 100, entry, rows, rows, True) for entry in range(first, end, rows)]
        core.offer(ReadBlocks(blocks), core.reading_number)
        grants = core.dispatch(0)
        granted = sum(grant.rows[-1][1] - grant.rows[0][0] for grant in grants)
        assert granted == entries, f"{granted} of {entries} entries were granted"
        self._received[consumer_id] = grants[-1].number
        return first

    def acknowledge(self, ranges: list[tuple[int, int, int]]) -> None:
        """And make it durable from time to time."""
        self.core.acknowledge(HOLDER, ranges)
        self._steps += 1
        if self._steps % FLUSH_STEPS == 0:
            self.flush()

    def flush(self) -> None:
        """Write what changed of the cursor."""
        flush = self._store.begin_flush()
        if flush is not None:
            flush.run()
            self._store.finish_flush(flush)

    def rate(self) -> float:
        """Messages handed out and acknowledged per second of CPU."""
        messages = 1000 * max(SLICE_BLOCKS * self._rows // 1000, 10)
        began = time.process_time()
        for _ in range(0, messages, 1000):
            first = self.hand_out(WORKER, 1000)
            self.acknowledge([(1, entry, entry + 99) for entry in range(first, first + 1000, 100)])
        return messages / (time.process_time() - began)


def _holding(directory: Path, rows: int, entries: int) -> _Core:
    core = _Core(directory, rows)
    for _ in range(0, entries, 1000):
        core.hand_out(HOLDER, 1000)
    return core


def _with_holes(directory: Path, holes: int) -> _Core:
    """Every second entry is acknowledged, one by one."""
    core = _Core(directory, 1000)
    for _ in range(0, 2 * holes, 1000):
        first = core.hand_out(HOLDER, 1000)
        core.acknowledge([(1, entry, entry) for entry in range(first + 1, first + 1000, 2)])
    core.flush()
    return core


def _cursor_with_holes(directory: Path, holes: int) -> CursorStore:
    store = CursorStore.create(directory, CursorSubscription("bench"), Position(1, -1))
    store.cursor.set_ledgers([(1, 2 * holes)])
    for hole in range(holes):
        store.cursor.acknowledge(1, 2 * hole + 1, 2 * hole + 1)
        if hole % 1000 == 0 and (flush := store.begin_flush()) is not None:
            flush.run()
            store.finish_flush(flush)
    return store


def _sized(make: Callable[[], T]) -> tuple[T, int]:
    """Make an object; returns it with the private memory that it takes."""
    gc.collect()
    before = psutil.Process().memory_full_info().uss
    made = make()
    gc.collect()
    return made, psutil.Process().memory_full_info().uss - before


def _row(what: str, ours: _Core, empty: _Core, note: str) -> Row:
    rates: list[float] = []
    floors: list[float] = []
    for turn in range(ROUNDS + 1):
        of_ours, of_empty = ours.rate(), empty.rate()
        if turn:
            rates.append(of_ours)
            floors.append(of_empty)
    return Row(
        f"a dispatcher with {what}: messages per second of its CPU",
        f"{p50(rates):,.0f}",
        f"with none {p50(floors):,.0f}",
        p50([a / b for a, b in zip(rates, floors, strict=True)]),
        LEAST_RATE,
        note=note,
    )
