"""What is written of a cursor is what changed, however it was collected."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.managed_ledger.cursor.cursor_store import apply_changes, changes_payload
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorChanges, CursorSubscription, ManagedCursor
from pulsar_ray.model.message_id import Position

ENTRIES = 100_000


def new_cursor() -> ManagedCursor:
    cursor = ManagedCursor(CursorSubscription("s"), Position(1, -1))
    cursor.set_ledgers([(1, ENTRIES - 1)])
    return cursor


@pytest.mark.parametrize("seed", range(8))
def test_records_of_scattered_acknowledgments_rebuild_the_cursor(seed: int) -> None:
    rng = random.Random(seed)
    cursor, again = new_cursor(), new_cursor()
    for _ in range(4):
        for _ in range(rng.choice([0, 3, 150, 400])):
            # Close behind mark-delete, so that it moves on, and sometimes far away.
            near = cursor.mark_delete.entry_id + 1
            origin = near + rng.randrange(300) if rng.random() < 0.9 else rng.randrange(ENTRIES)
            match rng.randrange(4):
                case 0:
                    cursor.acknowledge(1, origin, min(origin + rng.randrange(40), ENTRIES - 1))
                case 1:
                    cursor.acknowledge_bits(1, 0, (1 << ENTRIES - 1) | rng.getrandbits(500) << origin)
                case _:
                    cursor.acknowledge_bits(1, origin, rng.getrandbits(1 + rng.randrange(3000)))
        if rng.random() < 0.2:
            cursor.reset(Position(1, rng.randrange(ENTRIES)))
        apply_changes(again, changes_payload(cursor))
        cursor.changes = CursorChanges(is_recorded=True)
        assert again.mark_delete == cursor.mark_delete
        assert list(again.deleted) == list(cursor.deleted)


def test_what_mark_delete_has_passed_is_not_written() -> None:
    cursor = new_cursor()
    evens = sum(1 << row for row in range(0, 1000, 2))
    for block in range(200):
        cursor.acknowledge_bits(1, block * 1000, evens)
        cursor.acknowledge_bits(1, block * 1000, evens << 1)
    assert cursor.mark_delete == Position(1, ENTRIES - 1)
    assert "d" not in changes_payload(cursor)


def test_messages_that_fail_one_by_one_are_written_as_one_run() -> None:
    cursor, again = new_cursor(), new_cursor()
    for entry in (*range(100), *range(200, 300), 99):
        cursor.count_redelivery(1, entry, entry, 1 + cursor.counts.of(1, entry))
    assert cursor.changes.counts == [(1, 0, 99, 1), (1, 200, 299, 1), (1, 99, 99, 2)]
    apply_changes(again, changes_payload(cursor))
    assert list(again.counts) == [(1, 0, 98, 1), (1, 99, 99, 2), (1, 200, 299, 1)]
