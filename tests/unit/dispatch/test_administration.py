"""What an administrator does to a subscription: looking ahead, and acknowledging in its place."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.dispatch.inspect.peek import peek
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.unit.dispatch.rig import Rig
from tests.unit.dispatch.validation import validate

INDEX_ACKS = DispatchSettings(acknowledgment_at_batch_index_level_enabled=True)


def test_peeking_leaves_out_what_is_acknowledged() -> None:
    rig = Rig([4, -3, -2, 1], INDEX_ACKS)
    rig.add(1, credit=100, batch_index_ack=True)
    rig.grants()
    rig.dispatcher.acknowledge(1, ranges=[(1, 1, 1)], batch=[(1, 4, ((0, 1),))])
    rig.dispatcher.negative_acknowledge(1, [(1, 2, (), 0)])
    found = peek(rig.cursor, rig.refs, 100)
    assert [(p.block.first_entry_id, p.rows) for p in found] == [
        (0, ((0, 1), (2, 4))),
        (4, ((1, 3),)),
        (5, ((0, 2),)),
        (6, ((0, 1),)),
    ]
    assert [p.rows for p in peek(rig.cursor, rig.refs, 2)] == [((0, 1), (2, 3))]
    assert peek(rig.cursor, rig.refs, 0) == []
    validate(rig.dispatcher)


def test_a_peeked_message_knows_how_often_it_came() -> None:
    rig = Rig([2])
    rig.add(1, credit=100)
    rig.grants()
    rig.dispatcher.negative_acknowledge(1, [(1, 0, (), 0)])
    assert peek(rig.cursor, rig.refs, 1)[0].redelivery_count == 1


def test_what_is_skipped_does_not_come_and_its_consumers_are_free_again() -> None:
    settings = DispatchSettings(max_unacked_messages_per_consumer=10)
    rig = Rig([10, 10, 10], settings)
    rig.add(1, credit=100)
    assert rig.shares() == {1: 10}
    assert rig.dispatcher.acknowledgments.acknowledge_through(Position(1, 14)) == 15
    assert rig.dispatcher.acknowledgments.acknowledge_through(Position(1, 14)) == 0, "a repeat"
    assert rig.cursor.mark_delete == Position(1, 14)
    assert rig.told() == [(1, 10, ((5, 10),)), (1, 20, ((0, 5),))]
    assert rig.dispatcher.acknowledge(1, ranges=[(1, 0, 9)]) == rig.cursor.version, "late, and of no effect"


def test_beyond_both_ends() -> None:
    rig = Rig([5])
    acknowledgments = rig.dispatcher.acknowledgments
    assert acknowledgments.acknowledge_through(EARLIEST) == 0
    assert acknowledgments.acknowledge_through(Position(0, 99)) == 0
    assert acknowledgments.acknowledge_through(Position(7, 0)) == 5
    assert rig.cursor.backlog() == 0


@pytest.mark.parametrize("seed", range(10))
def test_skipping_counts_unacknowledged_entries(seed: int) -> None:
    source = random.Random(seed)
    rig = Rig([source.choice([1, 5, -4]) for _ in range(20)])
    rig.add(1, credit=1_000, consumer_type=ConsumerType.Shared)
    rig.grants()
    entries = rig.refs[-1].last_entry_id + 1
    for entry in source.sample(range(entries), entries // 3):
        rig.dispatcher.acknowledge(1, ranges=[(1, entry, entry)])
    left = [entry for entry in range(entries) if not rig.cursor.is_acknowledged(Position(1, entry))]
    count = source.randrange(1, len(left))
    end = rig.cursor.unacknowledged(count - 1)
    assert end is not None
    assert rig.dispatcher.acknowledgments.acknowledge_through(end) == count, f"seed {seed}"
    still = [entry for entry in range(entries) if not rig.cursor.is_acknowledged(Position(1, entry))]
    assert still == left[count:], f"seed {seed}"
    validate(rig.dispatcher)
