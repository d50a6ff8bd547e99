"""Measure opening a subscription with many ack holes: CPU, and memory and disk per hole.

In this process, without a dispatcher; the floor is what the record alone takes to be unpacked.
"""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import msgpack

from benchmarks.measuring.environment import Environment
from benchmarks.measuring.measure import p50
from benchmarks.measuring.results import Row
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore, snapshot_payload
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription
from pulsar_ray.model.message_id import Position

HOLES = (100_000, 1_000_000)
GAPS = (2, 100, 1000)
"""A hole at every so many entries: close together, and far from each other."""
ROUNDS = 5
TURN = 1000
"""So many acknowledgments are written together."""
MOST_TIMES_FLOOR = 15


def run(env: Environment) -> list[Row]:
    """Write cursors as a dispatcher does, a record each turn, and open them."""
    with env.directory() as path:
        return [_row(path / f"{holes}-{gap}", env.count(holes, 1000), gap) for holes in HOLES for gap in GAPS]


def _row(directory: Path, holes: int, gap: int) -> Row:
    _write(directory, holes, gap)
    ours, floors = [], []
    for _ in range(ROUNDS):
        began = time.process_time()
        store = CursorStore.open(directory)
        ours.append(time.process_time() - began)
        packed = msgpack.packb(snapshot_payload(store.cursor))
        began = time.process_time()
        msgpack.unpackb(packed)
        floors.append(time.process_time() - began)
        store.close()
    opened, memory = _sized(directory)
    opened.close()
    return Row(
        f"open a cursor with {holes:,} holes, one in {gap} entries: CPU",
        f"{p50(ours) * 1000:.1f} ms",
        f"unpack its record {p50(floors) * 1000:.1f} ms",
        p50(ours) / p50(floors),
        MOST_TIMES_FLOOR if gap > GAPS[0] else None,
        at_most=True,
        note=f"{memory / holes:.0f} bytes of memory and {len(packed) / holes:.1f} in a snapshot per hole; "
        f"with the changes since the last snapshot {ours[0] * 1000:.1f} ms",
    )


def _write(directory: Path, holes: int, gap: int) -> None:
    store = CursorStore.create(directory, CursorSubscription("bench"), Position(1, -1))
    store.cursor.set_ledgers([(1, (holes + 1) * gap)])
    for first in range(0, holes, TURN):
        for hole in range(first, min(first + TURN, holes)):
            store.cursor.acknowledge(1, hole * gap + 1, hole * gap + 1)
        if (flush := store.begin_flush()) is not None:
            flush.run()
            store.finish_flush(flush)
    store.close()


def _sized(directory: Path) -> tuple[CursorStore, int]:
    """Open a cursor; returns it with the memory that it keeps."""
    tracemalloc.start()
    try:
        store = CursorStore.open(directory)
        return store, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
