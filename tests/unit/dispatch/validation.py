"""The invariants of a dispatcher between any two events."""

from __future__ import annotations

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.consumer import DispatchBlock
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.model import row_sets
from pulsar_ray.model.message_id import Position


def validate(dispatcher: Dispatcher) -> None:
    """Raise AssertionError if a row is misplaced or lost, or a total wrong."""
    cursor, blocks, consumers = dispatcher.cursor, dispatcher.blocks, dispatcher.consumers.values()
    read_position = dispatcher.intake.read_position
    cursor.validate()
    waiting = unacked = 0
    fresh = set(map(id, blocks.fresh))
    for key, block in blocks.index.items():
        assert key == block.key
        # What is due may come before the log was read so far.
        assert key < read_position or block.ref.is_marked, (
            f"block {key} lies beyond the read position {read_position}"
        )
        _validate_block(cursor, block)
        waiting += counted_rows.size(block.waiting)
        unacked += sum(delivery.messages for delivery in block.deliveries)
        assert not block.waiting or key in blocks.waiting or id(block) in fresh, f"{key} waits in no queue"
        assert bool(block.suspects) == (key in blocks.suspects), f"suspects of {key}"
    assert all(block.waiting for block in blocks.waiting.values()), "a block without waiting rows is queued"
    assert waiting == blocks.waiting_messages, f"{waiting} wait, counted {blocks.waiting_messages}"
    pending = sum(len(consumer.deliveries) for consumer in dispatcher.consumers.values())
    assert pending == blocks.pending_acks, f"{pending} deliveries pending, counted {blocks.pending_acks}"
    assert unacked == blocks.unacked_messages, f"{unacked} pending, counted {blocks.unacked_messages}"
    for consumer in consumers:
        mine = [delivery for block in blocks.index.values() for delivery in block.deliveries]
        assert {d for d in mine if d.consumer is consumer} == set(consumer.deliveries)
        assert consumer.unacked == sum(delivery.messages for delivery in consumer.deliveries)
        suspects = {delivery for delivery in consumer.deliveries if delivery.group is not None}
        assert set(consumer.trial.deliveries) == suspects, f"trial of {consumer.spec}"
    assert dispatcher.passed_over() is None
    _validate_suspects(dispatcher)


def _validate_block(cursor: ManagedCursor, block: DispatchBlock) -> None:
    ref = block.ref
    parts = [delivery.rows for delivery in block.deliveries]
    parts += [counted_rows.rows_of(block.waiting), counted_rows.rows_of(block.suspects)]
    everywhere = 0
    for rows in parts:
        assert not everywhere & rows, f"rows of {block.key} are at two places: {parts}"
        everywhere |= rows
    assert all(rows for rows, _ in (*block.waiting, *block.suspects)), f"an empty segment in {block.key}"
    position = Position(*block.key)
    if ref.is_batch:
        assert not cursor.is_acknowledged(position), f"{position} is acknowledged and still there"
        lost = ref.all_rows & ~(everywhere | row_sets.of_ranges(cursor.acknowledged_rows(position)))
        assert not lost, f"rows {lost} of batch {position} are nowhere"
        assert not everywhere & row_sets.of_ranges(cursor.durable_rows(position)), "a durable row is back"
    else:
        first = ref.first_entry_id
        gaps = cursor.missing(ref.ledger_id, first, ref.last_entry_id)
        expected = row_sets.of_ranges(tuple((a - first, b - first + 1) for a, b in gaps))
        if ref.is_marked:
            expected &= everywhere  # delayed rows are left to the tracker
        assert everywhere == expected, f"{block.key} has rows {everywhere}, unacknowledged are {expected}"


def _validate_suspects(dispatcher: Dispatcher) -> None:
    blocks = dispatcher.blocks
    seen: dict[tuple[int, int], int] = {}
    for group in blocks.suspects:
        assert all(delivery.group is group and delivery.rows for delivery in group.deliveries)
        for key, rows in group.waiting.items():
            assert rows
            assert not rows & ~group.members[key], f"{key} has rows that are no members"
            assert not rows & seen.get(key, 0), f"rows of {key} are in two groups"
            seen[key] = seen.get(key, 0) | rows
    waiting = {
        key: counted_rows.rows_of(block.suspects) for key, block in blocks.index.items() if block.suspects
    }
    assert seen == waiting, "suspects that wait are those of the groups"
    assert set(dispatcher.cursor.suspects) == {group.number for group in blocks.suspects}
