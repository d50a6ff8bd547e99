"""Cursors against sets of entries, and through their log records."""

from __future__ import annotations

import gc
import random
import tracemalloc

import msgpack
import pytest

from pulsar_ray.managed_ledger.cursor.cursor_store import (
    apply_changes,
    changes_payload,
    cursor_from_snapshot,
    snapshot_payload,
)
from pulsar_ray.managed_ledger.cursor.managed_cursor import (
    CursorChanges,
    CursorSubscription,
    KnownConsumer,
    ManagedCursor,
)
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position

SPANS = [(1, 30), (4, -1), (7, 0), (9, 45)]
ENTRIES = [Position(ledger, entry) for ledger, last in SPANS for entry in range(last + 1)]


def cursor_at(mark_delete: Position = EARLIEST) -> ManagedCursor:
    cursor = ManagedCursor(CursorSubscription("s", properties={"team": "a"}), mark_delete)
    cursor.set_ledgers(SPANS)
    return cursor


def state(cursor: ManagedCursor) -> object:
    return (
        cursor.subscription,
        cursor.mark_delete,
        list(cursor.deleted),
        list(cursor.batch_acks()),
        list(cursor.counts),
        list(cursor.counts.all_row_failures()),
        cursor.consumers,
        cursor.generation,
    )


def restored(records: list[dict[str, object]]) -> ManagedCursor:
    records = msgpack.unpackb(msgpack.packb(records), use_list=False)
    cursor = cursor_from_snapshot(records[0])
    for record in records[1:]:
        apply_changes(cursor, record)
    cursor.set_ledgers(SPANS)
    return cursor


def random_step(cursor: ManagedCursor, rng: random.Random, acked: set[Position]) -> None:
    """Change the cursor, and the set of acknowledged entries with it."""
    position = rng.choice(ENTRIES)
    kinds = ["range", "range", "range", "bits", "up to", "below", "rows", "count", "consumer", "reset"]
    kind = rng.choice(kinds)
    if kind == "range":
        last = position.entry_id + rng.choice([0, 0, 3, 40])
        before = len(acked)
        acked.update(e for e in ENTRIES if position <= e <= (position.ledger_id, last))
        added = cursor.acknowledge(position.ledger_id, position.entry_id, last)
        assert added == len(acked) - before
    elif kind == "bits":
        ledger_id, origin = position.ledger_id, position.entry_id - rng.randrange(10)
        bits = rng.getrandbits(40) & rng.getrandbits(40)
        before = len(acked)
        acked.update(e for e in ENTRIES if e[0] == ledger_id and e[1] >= origin and bits >> e[1] - origin & 1)
        assert cursor.acknowledge_bits(ledger_id, origin, bits) == len(acked) - before
    elif kind == "up to" and rng.random() < 0.1:
        cursor.acknowledge_up_to(position)
        acked.update(e for e in ENTRIES if e <= position)
    elif kind == "below" and rng.random() < 0.1:
        cursor.acknowledge_below(position)
        acked.update(e for e in ENTRIES if e < position)
    elif kind == "rows":
        row = rng.randrange(4)
        if cursor.acknowledge_rows(position, ((row, row + 1),), 4, rng.random() < 0.5):
            acked.add(position)
    elif kind == "count":
        cursor.count_redelivery(
            position.ledger_id, position.entry_id, position.entry_id + 2, rng.randint(1, 3)
        )
        cursor.count_row_failures(position, ((1, 2),))
    elif kind == "consumer":
        identity = rng.randrange(5)
        if rng.random() < 0.5:
            cursor.remember_consumer(KnownConsumer(identity, f"c{identity}", 1))
        else:
            cursor.forget_consumer(identity)
    elif kind == "reset" and rng.random() < 0.1:
        cursor.reset(Position(position.ledger_id, position.entry_id - 1))
        acked.clear()
        acked.update(e for e in ENTRIES if e < position)


@pytest.mark.parametrize("seed", range(40))
def test_a_cursor_agrees_with_a_set_and_survives_its_log(seed: int) -> None:
    rng = random.Random(seed)
    cursor = cursor_at(EARLIEST)
    acked: set[Position] = set()
    records = [snapshot_payload(cursor)]
    for _ in range(300):
        random_step(cursor, rng, acked)
        cursor.validate()
        left = [entry for entry in ENTRIES if entry not in acked]
        assert [entry for entry in ENTRIES if not cursor.is_acknowledged(entry)] == left
        assert cursor.backlog() == len(left)
        index = rng.randrange(len(ENTRIES))
        assert cursor.unacknowledged(index) == (left[index] if index < len(left) else None)
        before_left = [e for e in ENTRIES if e < left[0]] if left else ENTRIES
        if before_left:
            assert cursor.mark_delete >= before_left[-1]
        if rng.random() < 0.2:
            records.append(changes_payload(cursor))
            cursor.changes = CursorChanges(is_recorded=True)
            if rng.random() < 0.1:
                records = [snapshot_payload(cursor)]
            assert state(restored(records)) == state(cursor)


def test_what_does_not_exist_cannot_be_acknowledged() -> None:
    cursor = cursor_at(Position(1, 3))
    for ledger_id, first, last in [(1, 31, 99), (2, 0, 5), (99, 0, 0), (-1, -1, -1), (1, 5, 4), (1, 0, 3)]:
        assert cursor.acknowledge(ledger_id, first, last) == 0
    for position in [EARLIEST, LATEST, Position(1, 31), Position(2, 0), Position(1, 2), Position(9, 46)]:
        assert not cursor.acknowledge_up_to(position)
        assert not cursor.acknowledge_rows(position, ((0, 1),), 1, True)
    assert cursor.mark_delete == (1, 3)
    assert cursor.version == 0


def test_acknowledging_beyond_the_end_takes_what_exists() -> None:
    cursor = cursor_at(Position(1, 3))
    assert cursor.acknowledge(1, 4, 1_000) == 27
    assert cursor.mark_delete == (1, 30)


def test_mark_delete_crosses_ledgers_once_they_are_known() -> None:
    cursor = ManagedCursor(CursorSubscription("s"), Position(1, 29))
    cursor.set_ledgers([(1, 30)])
    cursor.acknowledge(1, 30, 30)
    cursor.set_ledgers(SPANS)
    cursor.acknowledge(9, 0, 2)
    assert cursor.mark_delete == (1, 30)
    cursor.acknowledge(7, 0, 0)
    assert cursor.mark_delete == (9, 2)
    assert len(cursor.deleted) == 0


def test_a_hundred_thousand_holes_survive_and_take_two_bytes_each() -> None:
    cursor = ManagedCursor(CursorSubscription("s"), Position(1, -1))
    cursor.set_ledgers([(1, 200_000)])
    for entry in range(1, 200_000, 2):
        cursor.acknowledge(1, entry, entry)
    assert len(cursor.deleted) == 100_000
    packed = msgpack.packb(snapshot_payload(cursor))
    assert len(packed) < 2 * 100_000 + 200
    again = cursor_from_snapshot(msgpack.unpackb(packed))
    assert list(again.deleted) == list(cursor.deleted)


def test_a_hundred_thousand_holes_far_from_each_other_take_few_bytes() -> None:
    tracemalloc.start()
    try:
        cursor = ManagedCursor(CursorSubscription("s"), Position(1, -1))
        cursor.set_ledgers([(1, 100_000_000)])
        for entry in range(1, 100_000_000, 1000):
            cursor.acknowledge(1, entry, entry)
        payload = msgpack.packb(snapshot_payload(cursor))
        before, _ = tracemalloc.get_traced_memory()
        again = cursor_from_snapshot(msgpack.unpackb(payload))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(again.deleted) == list(cursor.deleted)
    assert again.deleted.entries == 100_000
    assert after - before < 20 * 100_000


@pytest.mark.parametrize(
    "holes",
    [
        [5],
        [5, 1, -1, 1],
        [5, 0],
        [5, "x"],
        [5, 1 << 70],
        [*range(2, 200), -300, 1],
        [*range(2, 200), 1, 1 << 70],
        [*range(2, 200), 1, b""],
    ],
)
def test_holes_that_are_none_are_refused(holes: list[object]) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        cursor_from_snapshot({"s": ["s", True, {}], "m": [1, 3], "g": 0, "d": [1, holes]})


def test_holes_are_stored_as_ranges_or_as_bits() -> None:
    cursor = ManagedCursor(CursorSubscription("s"), Position(1, -1))
    cursor.set_ledgers([(1, 5000)])
    cursor.acknowledge(1, 10, 19)
    cursor.acknowledge_bits(1, 2000, 0b1011)
    cursor.acknowledge_bits(1, 4096, int("01" * 20, 2))
    record = changes_payload(cursor)
    assert record["d"] == [1, [10, 10, 1980, 2, 1, 1, 2092, b"\x55" * 5]]
    snapshot = snapshot_payload(cursor)
    assert snapshot["d"] == record["d"]
    assert list(cursor_from_snapshot(snapshot).deleted) == list(cursor.deleted)


def test_holes_of_records_from_before_there_were_bits() -> None:
    record = {"m": [1, 3], "g": 0, "d": [1, [10, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 2, [0, 5]]}
    cursor = cursor_from_snapshot({"s": ["s", True, {}], **record})
    holes = [(1, 10, 19), *((1, entry, entry) for entry in range(21, 32, 2)), (2, 0, 4)]
    assert (cursor.mark_delete, list(cursor.deleted)) == ((1, 3), holes)


def test_rows_of_a_batch_complete_it_durably_or_for_the_session() -> None:
    cursor = cursor_at(Position(1, 3))
    batch = Position(1, 5)
    assert not cursor.acknowledge_rows(batch, ((0, 2),), 4, is_durable=False)
    assert (cursor.durable_rows(batch), cursor.acknowledged_rows(batch)) == ((), ((0, 2),))
    assert cursor.version == 0, "nothing durable changed"
    assert not cursor.acknowledge_rows(batch, ((3, 4),), 4, is_durable=True)
    assert (cursor.durable_rows(batch), cursor.acknowledged_rows(batch)) == (((3, 4),), ((0, 2), (3, 4)))
    assert cursor.acknowledge_rows(batch, ((1, 3),), 4, is_durable=False)
    assert cursor.is_acknowledged(batch)
    assert cursor.acknowledged_rows(batch) == ()


def test_a_cursor_that_is_never_stored_collects_no_changes() -> None:
    cursor = ManagedCursor(CursorSubscription("r", is_durable=False), Position(1, -1))
    cursor.set_ledgers([(1, 50)])
    cursor.acknowledge(1, 10, 12)
    cursor.count_redelivery(1, 20, 20, 1)
    assert not cursor.changes.deleted_behind(EARLIEST)
    assert not cursor.changes.counts
