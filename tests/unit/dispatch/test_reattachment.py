"""Lost connections and restarted dispatchers: nobody sees a duplicate, nobody's place is taken."""

from __future__ import annotations

import pytest

from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.consumer import ConsumerExit, ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.key_shared.hash_regions import KeySharedSpec
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import ConsumerAssignError, ConsumerBusy
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.model.enums import ConsumerType, KeySharedMode
from pulsar_ray.model.message_id import Position
from tests.unit.dispatch.rig import Rig, dropped
from tests.unit.dispatch.validation import validate

EXCLUSIVE = ConsumerType.Exclusive
GRACE_MS = DispatchSettings().reattach_grace_ms


def restarted(rig: Rig, now_ms: int = 0) -> Rig:
    """The same log and cursor with a dispatcher that knows nothing else."""
    again = Rig([], cursor=rig.cursor)
    again.refs = rig.refs
    again.cursor.set_ledgers([(1, rig.refs[-1].last_entry_id)])
    again.dispatcher = Dispatcher(rig.cursor, DispatchSettings(), epoch=8, now_ms=now_ms)
    again.now_ms = now_ms
    return again


def test_what_did_not_arrive_is_sent_again_and_nothing_is_charged_twice() -> None:
    rig = Rig([3, 3, 3, 3])
    spec = rig.add(1, credit=12)
    numbers = [grant.number for grant in rig.grants()]
    assert numbers == [1, 2, 3, 4]
    rig.dispatcher.acknowledge(2, [(1, 6, 8), (1, 9, 9)])
    attachment = rig.dispatcher.attach_consumer(spec, 10, epoch=7, received=1)
    assert attachment.resumed
    assert [(g.number, g.rows) for g in attachment.again] == [(2, ((0, 3),)), (4, ((1, 3),))]
    assert rig.dispatcher.consumers[1].granted == 3 + 3 + 2
    repeated = rig.dispatcher.attach_consumer(spec, 11, epoch=7, received=1)
    assert repeated == attachment
    assert rig.dispatcher.attach_consumer(spec, 12, epoch=7, received=4).again == []


def test_after_a_restart_consumers_keep_what_they_hold() -> None:
    rig = Rig([4, -3, 4])
    specs = [rig.add(1, credit=4), rig.add(2, credit=3), rig.add(3, credit=4)]
    assert [incarnation for incarnation, _, _ in rig.told()] == [1, 2, 3]
    rig.dispatcher.acknowledge(2, batch=[(1, 4, ((0, 1),))])
    rig = restarted(rig)
    dispatcher = rig.dispatcher
    assert rig.grants() == [], "three may still come"
    first = dispatcher.attach_consumer(specs[0], 1, held=[(1, 0, ((0, 2), (3, 4)))], received_messages=4)
    assert not first.resumed
    dispatcher.attach_consumer(specs[1], 1, held=[(1, 4, ((1, 3),))], received_messages=3)
    rig.report(1, 100)
    rig.report(2, 100)
    assert rig.grants() == [], "the third may still come"
    assert dispatcher.returning.awaited
    assert dispatcher.returning.grace_until_ms == GRACE_MS
    dispatcher.expire(GRACE_MS)
    assert not dispatcher.returning.awaited
    rig.now_ms = GRACE_MS
    free = [(g.block.first_entry_id, g.rows) for g in rig.grants()]
    assert free == [(0, ((2, 3),)), (5, ((0, 4),))], "what nobody held"
    assert dispatcher.consumers[1].permits + dispatcher.consumers[2].permits == 100 - 4 + 100 - 3 - 5
    dispatcher.acknowledge(2, batch=[(1, 4, ((1, 3),))])
    assert rig.cursor.is_acknowledged(rig.cursor.mark_delete.next()) is False
    assert list(rig.cursor.deleted) == [(1, 4, 4)], "the first message had been acknowledged before"


@pytest.mark.parametrize("is_read_first", [False, True])
def test_of_a_batch_given_in_part_the_rest_comes_after_a_restart(is_read_first: bool) -> None:
    rig = Rig([-4, -2])
    spec = rig.add(1, credit=6)
    rig.grants()
    rig = restarted(rig)
    dispatcher = rig.dispatcher
    if is_read_first:
        dispatcher.expire(GRACE_MS)
        rig.grants()
    dispatcher.attach_consumer(spec, GRACE_MS, parts=[(1, 0, ((0, 1),))], received_messages=1)
    rig.report(1, 100)
    rig.now_ms = GRACE_MS
    free = [(g.block.first_entry_id, g.rows) for g in rig.grants()]
    assert free == [(0, ((1, 4),)), (1, ((0, 2),))], "the first message is held, the rest is not acknowledged"
    dispatcher.acknowledge(1, batch=[(1, 0, ((0, 1),))])
    assert not rig.cursor.is_acknowledged(Position(1, 0))
    dispatcher.acknowledge(1, batch=[(1, 0, ((1, 4),))])
    assert rig.cursor.is_acknowledged(Position(1, 0))


def test_what_was_acknowledged_of_a_part_of_a_batch_is_in_the_cursors_log() -> None:
    rig = Rig([-8])
    rig.add(1, credit=8)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=8)
    rig.add(2, credit=8, priority_level=1)
    assert rig.told() == [(2, 0, ((0, 4),))], "it comes again in halves"
    spec = rig.add(3, credit=8)
    before = rig.cursor.version
    confirmed = rig.dispatcher.acknowledge(2, batch=[(1, 0, ((0, 4),))])
    assert confirmed > before, "a receipt waits for a write"
    assert rig.told() == [(3, 0, ((4, 8),))]

    cursor = ManagedCursor(rig.cursor.subscription, rig.cursor.mark_delete)
    for position, rows in rig.cursor.batch_acks():
        cursor.restore_batch(position, rows)
    rig.cursor = cursor
    rig = restarted(rig)
    rig.dispatcher.attach_consumer(spec, 0, parts=[(1, 0, ((4, 8),))], received_messages=4)
    rig.report(3, 100)
    rig.now_ms = GRACE_MS
    rig.dispatcher.expire(GRACE_MS)
    assert rig.grants() == [], "the other consumer comes too late to say what it has acknowledged"
    rig.dispatcher.acknowledge(3, batch=[(1, 0, ((4, 8),))])
    assert rig.cursor.is_acknowledged(Position(1, 0))


def test_what_is_held_or_acknowledged_is_no_more_to_come() -> None:
    rig = Rig([4, -3, 4])
    end = Position(1, 8)
    spec = rig.add(1, credit=7)
    assert rig.dispatcher.has_more(end) is True
    rig.grants()
    rig.dispatcher.acknowledge(1, [(1, 0, 0), (1, 5, 7)])
    rig = restarted(rig)
    dispatcher = rig.dispatcher
    dispatcher.attach_consumer(spec, 1, held=[(1, 0, ((1, 4),)), (1, 4, ((0, 3),))], received_messages=7)
    assert dispatcher.has_more(end) is None, "nothing was read yet"
    rig.offer()
    assert dispatcher.has_more(end) is True, "the last entry waits"
    rig.report(1, 100)
    rig.grants()
    assert dispatcher.has_more(end) is False


def test_what_was_granted_and_has_not_come_is_under_way() -> None:
    rig = Rig([1, 1, 1])
    rig.add(1, credit=2)
    assert not rig.dispatcher.is_under_way(1, 0)
    assert [grant.number for grant in rig.grants()] == [1, 2]
    assert rig.dispatcher.is_under_way(1, 0)
    assert rig.dispatcher.is_under_way(1, 1)
    assert not rig.dispatcher.is_under_way(1, 2), "the third waits for room"
    rig.dispatcher.acknowledge(1, [(1, 0, 1)])
    assert not rig.dispatcher.is_under_way(1, 0), "it has both already"
    assert not rig.dispatcher.is_under_way(2, 0), "there is no such consumer"


def test_what_was_acknowledged_before_it_was_read_is_no_more_to_come() -> None:
    rig = Rig([4, 4])
    rig.dispatcher.acknowledge(1, [(1, 0, 2), (1, 4, 7)])
    assert rig.dispatcher.has_more(Position(1, 2)) is False
    assert rig.dispatcher.has_more(Position(1, 7)) is True
    rig.dispatcher.acknowledge(1, [(1, 3, 3)])
    assert rig.dispatcher.has_more(Position(1, 7)) is False
    assert rig.dispatcher.has_more(Position(1, 8)) is True, "the log went on"


def test_late_ones_get_what_nobody_else_has() -> None:
    rig = Rig([4, 4])
    spec = rig.add(1, credit=8)
    rig.grants()
    rig = restarted(rig)
    rig.dispatcher.expire(GRACE_MS)
    rig.now_ms = GRACE_MS
    rig.add(2, credit=2)
    assert rig.told() == [(2, 0, ((0, 2),))]
    rig.dispatcher.attach_consumer(spec, GRACE_MS, held=[(1, 0, ((0, 4),)), (1, 4, ((1, 2),))])
    validate(rig.dispatcher)
    assert rig.dispatcher.consumers[1].unacked == 3
    rig.report(2, 100)
    assert rig.told() == [(2, 4, ((0, 1), (2, 4)))]


def test_an_exclusive_place_is_kept_for_the_one_from_before() -> None:
    rig = Rig([4])
    spec = rig.add(1, credit=4, consumer_type=EXCLUSIVE)
    rig.grants()
    rig = restarted(rig)
    other = ConsumerSpec(2, "c2", EXCLUSIVE)
    assert rig.dispatcher.must_wait(other)
    with pytest.raises(ConsumerBusy, match="come back"):
        rig.dispatcher.attach_consumer(other, 1)
    assert not rig.dispatcher.must_wait(spec)
    rig.dispatcher.expire(GRACE_MS)
    assert not rig.dispatcher.must_wait(other)
    rig.dispatcher.attach_consumer(other, GRACE_MS)
    assert set(rig.cursor.consumers) == {2}


@pytest.mark.parametrize("limit", range(5))
def test_limited_places_are_kept_for_those_from_before(limit: int) -> None:
    """One too many is not to wait: the limit refuses it."""
    rig = Rig([4])
    specs = [rig.add(number, credit=1, consumer_type=ConsumerType.Shared) for number in (1, 2)]
    rig = restarted(rig)
    rig.dispatcher.settings.max_consumers_per_subscription = limit
    new = ConsumerSpec(3, "c3", ConsumerType.Shared)
    for back in range(3):
        assert rig.dispatcher.must_wait(new) == (back < limit <= 2 and back < 2)
        assert not rig.dispatcher.must_wait(new, was_open=True)
        if back < 2:
            assert not rig.dispatcher.must_wait(specs[back])
            rig.dispatcher.attach_consumer(specs[back], 1)
    rig = restarted(rig)
    rig.dispatcher.settings.max_consumers_per_subscription = limit
    rig.dispatcher.expire(GRACE_MS)
    assert not rig.dispatcher.must_wait(new)


def test_a_new_key_shared_consumer_takes_nothing_from_those_that_may_come_back() -> None:
    lower = KeySharedSpec(KeySharedMode.Sticky, sticky_ranges=((0, 40_000),))
    upper = KeySharedSpec(KeySharedMode.Sticky, sticky_ranges=((40_001, 65_535),))
    rig = Rig([4])
    specs = [
        ConsumerSpec(number, f"c{number}", ConsumerType.KeyShared, key_shared=ranges)
        for number, ranges in ((1, lower), (2, upper))
    ]
    for spec in specs:
        rig.dispatcher.attach_consumer(spec, 0)
    rig = restarted(rig)
    overlapping = ConsumerSpec(3, "c3", ConsumerType.KeyShared, key_shared=lower)
    other_mode = ConsumerSpec(4, "c4", ConsumerType.KeyShared)
    for spec in reversed(specs):
        for new in (overlapping, other_mode):
            assert rig.dispatcher.must_wait(new)
        assert not rig.dispatcher.must_wait(spec)
        rig.dispatcher.attach_consumer(spec, 1)
    for new, refusal in ((overlapping, ConsumerAssignError), (other_mode, ConsumerBusy)):
        assert not rig.dispatcher.must_wait(new)
        with pytest.raises(refusal):
            rig.dispatcher.attach_consumer(new, 1)


@pytest.mark.parametrize("consumer_type", [EXCLUSIVE, ConsumerType.Shared])
def test_a_failure_that_was_counted_before_the_message_came_again_brings_it_back(
    consumer_type: ConsumerType,
) -> None:
    rig = Rig([4])
    spec = rig.add(1, credit=4, consumer_type=consumer_type)
    rig.grants()
    failure = [(1, 1, (), 0)]
    rig.dispatcher.negative_acknowledge(1, failure)
    rig = restarted(rig)
    # The answer was lost with the dispatcher: its client says it again.
    rig.dispatcher.attach_consumer(spec, 1, held=[(1, 0, ((0, 4),))], received_messages=4)
    rig.offer()
    rig.report(1, 100)
    rig.dispatcher.negative_acknowledge(1, failure)
    (again, *others) = rig.grants()
    assert (again.rows[0][0], again.redelivery_count) == (1, 1)
    assert bool(others) is (consumer_type is EXCLUSIVE), "in order, what is behind it comes too"
    # Said once more it is stale.
    rig.dispatcher.negative_acknowledge(1, failure)
    assert rig.grants() == []


def test_a_message_whose_count_was_lost_comes_back_when_it_fails() -> None:
    rig = Rig([4])
    spec = rig.add(1, credit=4)
    rig.grants()
    rig = restarted(rig)
    rig.dispatcher.attach_consumer(spec, 1, held=[(1, 0, ((0, 4),))], received_messages=4)
    rig.offer()
    rig.report(1, 100)
    # The predecessor had delivered it for the fourth time, and died before that was durable.
    rig.dispatcher.negative_acknowledge(1, [(1, 2, (), 3)])
    assert [(grant.rows, grant.redelivery_count) for grant in rig.grants()] == [(((2, 3),), 1)]


def test_redelivery_asked_for_before_the_blocks_were_read_happens_when_they_are() -> None:
    rig = Rig([4])
    spec = rig.add(1, credit=4, consumer_type=EXCLUSIVE)
    rig.grants()
    rig = restarted(rig)
    dispatcher = rig.dispatcher
    dispatcher.attach_consumer(spec, 1, held=[(1, 0, ((0, 4),))], received_messages=4)
    assert dispatcher.negative_acknowledge(1, [(1, 0, ((2, 3),), 0)]) == []
    assert dropped(dispatcher.offer(ReadBlocks(rig.refs), dispatcher.reading_number)) == [
        (1, dispatcher.generation)
    ]
    rig.report(1, 100)
    assert [(g.rows, g.redelivery_count) for g in rig.grants()] == [(((2, 3),), 1), (((3, 4),), 0)]


def test_what_never_existed_cannot_be_held() -> None:
    rig = Rig([4])
    spec = rig.add(1)
    rig = restarted(rig)
    held = [(1, 2, ((0, 1),)), (1, 400, ((0, 1),)), (9, 0, ((0, 9),))]
    rig.dispatcher.attach_consumer(spec, 1, held=held)
    assert rig.dispatcher.blocks_wanted() > 0
    rig.offer()
    assert rig.dispatcher.blocks_wanted() == 0
    rig.report(1, 100)
    assert rig.told() == [(1, 0, ((0, 4),))]


def test_reading_ahead_is_bounded_by_what_consumers_can_take() -> None:
    rig = Rig([100] * 50)
    assert rig.dispatcher.blocks_wanted() == 0
    rig.add(1, credit=300)
    assert rig.dispatcher.blocks_wanted() == 600
    rig.dispatcher.offer(ReadBlocks(rig.refs[:2]), rig.dispatcher.reading_number)
    assert rig.dispatcher.blocks_wanted() == 400
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED)
    assert rig.dispatcher.blocks_wanted() == 0


def test_handing_over_is_counted_right_after_a_shortened_resend() -> None:
    rig = Rig([3, 3])
    spec = rig.add(1, credit=6)
    rig.grants()
    rig.dispatcher.acknowledge(2, [(1, 0, 1)])
    again = rig.dispatcher.attach_consumer(spec, 10, epoch=7, received=0).again
    assert [g.rows for g in again] == [((2, 3),), ((0, 3),)]
    rig.report(1, 6, received=2, handed_over=2)
    rig.dispatcher.redeliver_unacknowledged(1, through=2)
    rig.report(1, 100, received=2, handed_over=4)
    counts = [(g.block.first_entry_id, g.rows, g.redelivery_count) for g in rig.grants()]
    assert counts == [(0, ((2, 3),), 1), (3, ((0, 1),), 1), (3, ((1, 3),), 0)]


def test_a_seek_voids_what_consumers_held_before_it() -> None:
    rig = Rig([4, 4])
    spec = rig.add(1, credit=8)
    rig.grants()
    rig = restarted(rig)
    rig.dispatcher.attach_consumer(spec, 1, held=[(1, 4, ((0, 4),))], received_messages=8)
    rig.dispatcher.negative_acknowledge(1, [(1, 4, ((0, 1),), 0)])
    rig.dispatcher.seek(Position(1, 2))
    rig.report(1, 100)
    assert rig.told() == [(1, 0, ((2, 4),)), (1, 4, ((0, 4),))]
