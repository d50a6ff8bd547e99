"""Exclusive: one consumer, order, rewinding."""

from __future__ import annotations

import pytest

from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.consumer import ConsumerExit, ConsumerSpec
from pulsar_ray.dispatch.redelivery import EMPTY_QUEUE, ConsumerQueue
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import ConsumerBusy
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.unit.dispatch.rig import Rig, dropped
from tests.unit.dispatch.validation import validate

EXCLUSIVE = ConsumerType.Exclusive


def test_a_second_consumer_is_refused() -> None:
    rig = Rig([])
    rig.add(1, consumer_type=EXCLUSIVE)
    with pytest.raises(ConsumerBusy, match="already connected"):
        rig.add(2, consumer_type=EXCLUSIVE)
    rig.dispatcher.remove_consumer(1, ConsumerExit.CLOSED)
    rig.add(2, consumer_type=EXCLUSIVE)


def test_a_nack_repeats_everything_from_the_oldest_on_in_order() -> None:
    rig = Rig([4, -3, 4])
    rig.add(1, credit=9, consumer_type=EXCLUSIVE)
    assert rig.told() == [(1, 0, ((0, 4),)), (1, 4, ((0, 3),)), (1, 5, ((0, 2),))]
    rig.dispatcher.acknowledge(1, [(1, 0, 0), (1, 3, 3)])
    actions = rig.dispatcher.negative_acknowledge(1, [(1, 4, ((1, 2),), 0), (1, 0, ((2, 3),), 0)])
    assert dropped(actions) == [(1, rig.dispatcher.generation)]
    rig.report(1, 100)
    again = [(g.block.first_entry_id, g.rows, g.redelivery_count) for g in rig.grants()]
    assert again == [(0, ((2, 3),), 1), (4, ((0, 3),), 1), (5, ((0, 4),), 0)]
    assert rig.dispatcher.consumers[1].unacked == 9, "the message before stays where it is"


@pytest.mark.parametrize(
    ("queue", "first"),
    [
        (EMPTY_QUEUE, 5),
        (ConsumerQueue(9, (1, 4, 0)), 4),
        (ConsumerQueue(9, (1, 0, 2)), 2),
        (ConsumerQueue(5, None), 4),
        (ConsumerQueue(3, (1, 5, 0)), 0),
        (ConsumerQueue(-1, None), 0),
    ],
)
def test_a_later_nack_repeats_what_an_earlier_one_has_brought_to_the_queue_that_goes(
    queue: ConsumerQueue, first: int
) -> None:
    """Deliveries 4 to 7: the failed row again, the others of its block, the batch, the last block."""
    rig = Rig([4, -3, 4])
    rig.add(1, credit=100, consumer_type=EXCLUSIVE)
    assert len(rig.grants()) == 3
    rig.dispatcher.negative_acknowledge(1, [(1, 0, ((0, 1),), 0)])
    assert [g.number for g in rig.grants()] == [4, 5, 6, 7]
    assert rig.dispatcher.negative_acknowledge(1, [(1, 5, ((0, 1),), 0)], queue)
    again = {
        g.block.first_entry_id + (row if g.block.row_is_entry else 0)
        for g in rig.grants()
        for start, end in g.rows
        for row in range(start, end)
    }
    assert again == {*range(first, 9)}


def test_cumulative_acknowledgment_may_end_within_blocks_and_batches() -> None:
    rig = Rig([4, -3, 4])
    rig.add(1, credit=100, consumer_type=EXCLUSIVE)
    rig.grants()
    rig.dispatcher.acknowledge(1, cumulative=(1, 2, -1))
    assert (rig.cursor.mark_delete, rig.dispatcher.consumers[1].unacked) == ((1, 2), 1 + 3 + 4)
    rig.dispatcher.acknowledge(1, cumulative=(1, 4, 1))
    assert (rig.cursor.mark_delete, rig.dispatcher.consumers[1].unacked) == ((1, 3), 1 + 4)
    rig.dispatcher.acknowledge(1, cumulative=(1, 4, 2))
    assert rig.cursor.mark_delete == (1, 4)
    for useless in [(1, 3, -1), (1, 900, -1), (-1, -1, -1), (2**63 - 1, 2**63 - 1, -1)]:
        rig.dispatcher.acknowledge(1, cumulative=useless)
    assert rig.cursor.mark_delete == (1, 4)
    validate(rig.dispatcher)


def test_unacknowledged_messages_are_not_limited() -> None:
    rig = Rig([1000] * 60)
    rig.add(1, credit=60_000, consumer_type=EXCLUSIVE)
    assert rig.shares() == {1: 60_000}


@pytest.mark.parametrize("position", [EARLIEST, Position(1, 0), Position(1, 5)])
def test_seek_starts_over_and_old_offers_are_ignored(position: Position) -> None:
    rig = Rig([10, 10])
    rig.add(1, credit=1000, consumer_type=EXCLUSIVE)
    rig.grants()
    rig.dispatcher.acknowledge(1, [(1, 0, 14)])
    rig.dispatcher.negative_acknowledge(1, [(1, 10, ((5, 6),), 0)])
    generation, seeks = rig.dispatcher.generation, rig.dispatcher.reading_number
    assert dropped(rig.dispatcher.seek(position)) == [(1, rig.dispatcher.generation)]
    assert rig.dispatcher.generation > generation
    rig.dispatcher.offer(ReadBlocks(rig.refs), seeks)
    assert rig.dispatcher.dispatch(0) == [], "read before the seek"
    first = max(position.entry_id, 0)
    assert rig.told() == [(1, 0, ((first, 10),)), (1, 10, ((0, 10),))]
    assert rig.cursor.backlog() == 20 - first
    assert [g.redelivery_count for g in rig.grants()] == []


def test_what_was_acknowledged_before_a_seek_and_comes_late_hides_nothing() -> None:
    rig = Rig([10, 10])
    rig.add(1, credit=1000, consumer_type=EXCLUSIVE)
    rig.grants()
    before = rig.dispatcher.generation
    rig.dispatcher.seek(Position(1, 5))
    version = rig.cursor.version
    assert rig.dispatcher.acknowledge(1, [(1, 0, 9)], (), (1, 9, -1), before) == version
    assert rig.cursor.backlog() == 15
    rig.dispatcher.acknowledge(1, [(1, 5, 9)], generation=rig.dispatcher.generation)
    assert rig.cursor.backlog() == 10


def test_what_was_held_before_a_seek_is_given_again() -> None:
    rig = Rig([10])
    rig.add(1, credit=1000, consumer_type=EXCLUSIVE)
    rig.grants()
    before = rig.dispatcher.generation
    rig.dispatcher.seek(Position(1, 5))
    again = Rig([10], cursor=rig.cursor)
    held = [(1, 0, ((0, 10),))]
    again.dispatcher.attach_consumer(ConsumerSpec(1, "c1", EXCLUSIVE), 0, held=held, generation=before)
    again.report(1, 1000)
    assert again.told() == [(1, 0, ((5, 10),))]


def test_after_a_crash_suspects_keep_their_place_in_the_order() -> None:
    rig = Rig([4, 4])
    rig.add(1, credit=6, consumer_type=EXCLUSIVE)
    rig.grants()
    rig.dispatcher.acknowledge(1, [(1, 1, 1)])
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED)
    rig.add(2, credit=100, consumer_type=EXCLUSIVE)
    order: list[int] = []
    for _ in range(8):
        for grant in rig.grants():
            entries = [grant.block.first_entry_id + row for a, b in grant.rows for row in range(a, b)]
            order += entries
            rig.dispatcher.acknowledge(2, [(1, entry, entry) for entry in entries])
    assert order == [0, 2, 3, 4, 5, 6, 7]


def test_a_request_to_redeliver_everything_that_is_said_again_changes_nothing() -> None:
    rig = Rig([4])
    rig.add(1, credit=10, consumer_type=EXCLUSIVE)
    rig.grants()
    rig.report(1, 14, received=1, handed_over=4)
    generation = rig.dispatcher.generation
    assert len(rig.dispatcher.redeliver_unacknowledged(1, 1, generation)) == 1
    (again,) = rig.grants()
    assert again.redelivery_count == 1
    rig.report(1, 18, received=2, handed_over=8)
    assert rig.dispatcher.redeliver_unacknowledged(1, 1, generation) == []
    assert rig.grants() == []


@pytest.mark.parametrize("consumer_type", [EXCLUSIVE, ConsumerType.Shared])
def test_a_subscription_gets_no_more_than_it_may_leave_unacknowledged(consumer_type: ConsumerType) -> None:
    rig = Rig([1, -5, 1, 1, 1], DispatchSettings(max_pending_acks_per_subscription=3))
    rig.add(1, credit=100, consumer_type=consumer_type)
    assert [entry for _, entry, _ in rig.told()] == [0, 1, 2]
    assert rig.told() == []
    reason = rig.dispatcher.why_no_room(rig.dispatcher.consumers[1])
    assert reason == "max_pending_acks_per_subscription is reached: 3 entries are unacknowledged"
    rig.dispatcher.acknowledge(1, [(1, 0, 1)])
    assert [entry for _, entry, _ in rig.told()] == [3, 4]
    rig.dispatcher.negative_acknowledge(1, [(1, 4, ((0, 1),), 0)])
    assert rig.dispatcher.blocks.pending_acks == sum(
        len(consumer.deliveries) for consumer in rig.dispatcher.consumers.values()
    )
