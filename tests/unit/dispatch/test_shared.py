"""Shared: turns, priorities, permits, limits, suspects."""

from __future__ import annotations

import pytest

from pulsar_ray.dispatch.consumer import ConsumerExit
from pulsar_ray.dispatch.redelivery import ConsumerQueue
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import ConsumerBusy, CumulativeAcknowledgementNotAllowedError
from pulsar_ray.model.enums import ConsumerType
from tests.unit.dispatch.rig import Rig
from tests.unit.dispatch.validation import validate


def test_few_messages_go_in_runs_of_twenty() -> None:
    rig = Rig([1] * 50)
    for incarnation in (1, 2, 3):
        rig.add(incarnation, credit=1000)
    assert rig.shares() == {1: 20, 2: 20, 3: 10}


def test_one_large_block_is_split_evenly() -> None:
    rig = Rig([300])
    for incarnation in (1, 2, 3):
        rig.add(incarnation, credit=1000)
    assert rig.told() == [(1, 0, ((0, 100),)), (2, 0, ((100, 200),)), (3, 0, ((200, 300),))]


def test_of_several_blocks_only_those_are_cut_that_fit_no_share_whole() -> None:
    rig = Rig([300] * 10)
    for incarnation in (1, 2, 3, 4):
        rig.add(incarnation, credit=1000)
    told = rig.told()
    assert [rows for _, _, rows in told[:8]] == [((0, 300),)] * 8
    assert [rows for _, _, rows in told[8:]] == [((0, 150),), ((150, 300),)] * 2


def test_a_burst_in_uneven_portions_is_shared_evenly() -> None:
    rig = Rig([])
    for incarnation in (1, 2):
        rig.add(incarnation, credit=1000)
    shares = {1: 0, 2: 0}
    for ref in Rig([2, 198] + [1, 20] * 20).refs:
        rig.refs.append(ref)
        for incarnation, messages in rig.shares().items():
            shares[incarnation] += messages
    assert sum(shares.values()) == 620
    assert abs(shares[1] - shares[2]) <= 20, shares


def test_the_size_of_a_turn_is_a_setting_that_may_change() -> None:
    settings = DispatchSettings(max_round_robin_batch_size=5)
    rig = Rig([1] * 8, settings)
    rig.add(1, credit=1000)
    rig.add(2, credit=1000)
    assert rig.shares() == {1: 5, 2: 3}
    settings.max_round_robin_batch_size = 50
    rig.refs += Rig([1] * 60).refs[8:]
    assert rig.shares() == {1: 25, 2: 27}


def test_blocks_stay_whole_where_the_backlog_is_deep() -> None:
    rig = Rig([1000] * 12)
    for incarnation in (1, 2, 3):
        rig.add(incarnation, credit=4000)
    told = rig.told()
    assert all(rows == ((0, 1000),) for _, _, rows in told)
    assert sorted(incarnation for incarnation, _, _ in told) == [1] * 4 + [2] * 4 + [3] * 4


def test_batches_are_never_cut_and_may_overdraw_permits() -> None:
    rig = Rig([-8, -8, -8])
    rig.add(1, credit=10)
    assert rig.told() == [(1, 0, ((0, 8),)), (1, 1, ((0, 8),))]
    assert rig.dispatcher.consumers[1].permits == -6
    rig.report(1, 16)
    assert rig.told() == []
    rig.report(1, 17)
    assert rig.told() == [(1, 2, ((0, 8),))]


def test_a_block_waits_for_credit_rather_than_be_cut_where_the_queue_can_hold_it_twice() -> None:
    rig = Rig([400, 400, 400])
    rig.add(1, credit=1000)
    assert rig.told() == [(1, 0, ((0, 400),)), (1, 400, ((0, 400),))]
    rig.report(1, 1500, handed_over=500)
    assert rig.told() == [(1, 800, ((0, 400),))]


def test_a_block_larger_than_half_of_the_queue_is_cut() -> None:
    rig = Rig([800])
    rig.add(1, credit=500)
    assert rig.told() == [(1, 0, ((0, 500),))]
    rig.report(1, 800, handed_over=300)
    assert rig.told() == [(1, 0, ((500, 800),))]


def test_another_consumer_gets_the_block_somebody_holds_back_from() -> None:
    rig = Rig([400, 400, 400])
    rig.add(1, credit=1000)
    assert len(rig.told()) == 2
    rig.add(2, credit=1000)
    assert rig.told() == [(2, 800, ((0, 400),))]


def test_better_priority_levels_come_first() -> None:
    rig = Rig([1] * 25)
    rig.add(1, credit=10)
    rig.add(2, credit=10, priority_level=1)
    rig.add(3, credit=10)
    assert rig.shares() == {1: 10, 3: 10, 2: 5}


def test_the_documented_order_of_five_consumers() -> None:
    permits = {1: (0, 2), 2: (0, 1), 3: (0, 1), 4: (1, 2), 5: (1, 1)}
    rig = Rig([])
    for incarnation, (level, credit) in permits.items():
        rig.add(incarnation, credit, priority_level=level)
    order = []
    all_refs = Rig([1] * 7).refs
    for ref in all_refs:
        rig.refs.append(ref)
        order += [incarnation for incarnation, _, _ in rig.told()]
    assert order == [1, 2, 3, 1, 4, 5, 4]


def test_a_nack_brings_back_only_that_message_counted_and_first() -> None:
    rig = Rig([10, 10])
    rig.add(1, credit=10)
    assert rig.told() == [(1, 0, ((0, 10),))]
    rig.report(1, 100)
    assert rig.dispatcher.negative_acknowledge(1, [(1, 0, ((3, 4), (7, 8)), 0)]) == []
    again, fresh = rig.grants()
    assert (again.rows, again.redelivery_count) == (((3, 4), (7, 8)), 1)
    assert (fresh.block.first_entry_id, fresh.redelivery_count) == (10, 0)
    rig.dispatcher.negative_acknowledge(1, [(1, 0, ((3, 4),), 0)])
    assert rig.grants() == [], "a stale nack"
    rig.dispatcher.negative_acknowledge(1, [(1, 3, ((0, 1),), 1)])
    (third,) = rig.grants()
    assert (third.rows, third.redelivery_count) == (((3, 4),), 2)


def test_a_nack_without_rows_is_of_the_whole_entry() -> None:
    rig = Rig([1, 10, -5])
    rig.add(1, credit=100)
    rig.grants()
    rig.dispatcher.negative_acknowledge(1, [(1, 0, (), 0), (1, 4, (), 0), (1, 11, (), 0)])
    assert rig.told() == [(1, 0, ((0, 1),)), (1, 1, ((3, 4),)), (1, 11, ((0, 5),))]


def test_a_nack_by_id_knows_no_redelivery_count() -> None:
    rig = Rig([1])
    rig.add(1, credit=10)
    for count in (0, 1):
        (grant,) = rig.grants()
        assert grant.redelivery_count == count
        rig.dispatcher.negative_acknowledge(1, [(1, 0, (), -1)])


def test_a_repeated_nack_by_id_does_not_fail_what_came_again_meanwhile() -> None:
    rig = Rig([1, 3])
    rig.add(1, credit=10)
    assert rig.told() == [(1, 0, ((0, 1),)), (1, 1, ((0, 3),))]
    said = ConsumerQueue(2, None, had_received=2)
    rig.dispatcher.negative_acknowledge(1, [(1, 0, (), -1), (1, 2, (), -1)], said)
    assert [(grant.rows, grant.redelivery_count) for grant in rig.grants()] == [
        (((0, 1),), 1),
        (((1, 2),), 1),
    ]
    rig.dispatcher.negative_acknowledge(1, [(1, 0, (), -1), (1, 2, (), -1)], said)
    assert rig.grants() == [], "the answer was lost, nothing else"
    rig.dispatcher.negative_acknowledge(1, [(1, 0, (), -1)], ConsumerQueue(4, None, had_received=4))
    assert [grant.redelivery_count for grant in rig.grants()] == [2]


def test_a_nack_of_what_another_consumer_has_changes_nothing() -> None:
    rig = Rig([1])
    rig.add(1, credit=1)
    rig.add(2, credit=10)
    (grant,) = rig.grants()
    other = 3 - grant.incarnation
    assert rig.dispatcher.negative_acknowledge(other, [(1, 0, ((0, 1),), 0)]) == []
    assert rig.grants() == []


def test_one_failed_message_of_a_batch_brings_the_entry_and_is_counted_alone() -> None:
    rig = Rig([-5])
    rig.add(1, credit=10)
    rig.grants()
    rig.dispatcher.acknowledge(1, batch=[(1, 0, ((0, 1),))])
    rig.dispatcher.negative_acknowledge(1, [(1, 0, ((2, 3),), 0)])
    (again,) = rig.grants()
    assert (again.rows, again.redelivery_count, again.row_failures) == (((0, 5),), 1, ((2, 3, 1),))
    rig.dispatcher.acknowledge(1, batch=[(1, 0, ((1, 5),))])
    assert rig.cursor.is_acknowledged(rig.cursor.mark_delete)
    assert rig.cursor.backlog() == 0, "the first message was acknowledged in this session"


def test_with_index_acks_acknowledged_messages_stay_away() -> None:
    rig = Rig([-5], DispatchSettings(acknowledgment_at_batch_index_level_enabled=True))
    rig.add(1, credit=10, batch_index_ack=True)
    rig.grants()
    rig.dispatcher.acknowledge(1, batch=[(1, 0, ((1, 2), (3, 4)))])
    assert rig.dispatcher.consumers[1].unacked == 3
    rig.dispatcher.remove_consumer(1, ConsumerExit.CLOSED)
    rig.add(2, credit=10)
    assert rig.told() == [(2, 0, ((0, 1), (2, 3), (4, 5)))]


def test_max_unacked_stops_a_consumer_until_half_is_acknowledged() -> None:
    rig = Rig([30], DispatchSettings(max_unacked_messages_per_consumer=10))
    rig.add(1, credit=1000)
    assert rig.shares() == {1: 10}
    rig.dispatcher.acknowledge(1, [(1, 0, 3)])
    assert rig.shares() == {}
    rig.dispatcher.acknowledge(1, [(1, 4, 4)])
    assert rig.shares() == {1: 5}


def test_max_unacked_stops_a_subscription_until_half_is_acknowledged() -> None:
    rig = Rig([1] * 60, DispatchSettings(max_unacked_messages_per_subscription=15))
    rig.add(1, credit=1000)
    rig.add(2, credit=1000)
    assert sum(rig.shares().values()) == 15
    rig.dispatcher.acknowledge(1, [(1, 0, 7)])
    assert rig.shares() == {}, "7 are left, half of 15"
    rig.dispatcher.acknowledge(2, [(1, 8, 8)])
    assert sum(rig.shares().values()) == 9


def test_close_counts_nothing_and_order_is_by_position() -> None:
    rig = Rig([1] * 4)
    rig.add(1, credit=4)
    rig.grants()
    rig.dispatcher.acknowledge(1, [(1, 1, 1)])
    rig.dispatcher.remove_consumer(1, ConsumerExit.CLOSED)
    rig.add(2, credit=10)
    grants = rig.grants()
    assert [(g.block.first_entry_id, g.redelivery_count, g.is_suspect) for g in grants] == [
        (0, 0, False),
        (2, 0, False),
        (3, 0, False),
    ]


def test_redeliver_unacknowledged_fails_what_was_handed_over() -> None:
    rig = Rig([6])
    rig.add(1, credit=6)
    rig.grants()
    rig.report(1, 8, received=1, handed_over=2)
    assert rig.dispatcher.redeliver_unacknowledged(1, through=1) == []
    rig.report(1, 12, received=1, handed_over=6)
    grants = rig.grants()
    assert [(g.rows, g.redelivery_count) for g in grants] == [(((0, 2),), 1), (((2, 6),), 0)]
    rig.dispatcher.redeliver_unacknowledged(1, through=1)
    assert rig.grants() == [], "a repeat is harmless"


def test_a_client_that_took_part_of_a_block_says_how_much_of_it_has_failed() -> None:
    rig = Rig([6])
    rig.add(1, credit=6)
    rig.grants()
    # A report counts whole parts.
    rig.report(1, 12, received=1, handed_over=6)
    rig.dispatcher.redeliver_unacknowledged(1, through=1, handed_over=2)
    grants = rig.grants()
    assert [(g.rows, g.redelivery_count) for g in grants] == [(((0, 2),), 1), (((2, 6),), 0)]


def test_acknowledgments_may_cut_across_blocks_and_come_from_anybody() -> None:
    rig = Rig([10, -3, 1, 10])
    rig.add(1, credit=100)
    rig.add(2)
    rig.grants()
    rig.dispatcher.acknowledge(2, [(1, 5, 14), (1, 2, 2), (1, 500, 900)])
    validate(rig.dispatcher)
    assert list(rig.cursor.deleted) == [(1, 2, 2), (1, 5, 14)]
    assert rig.dispatcher.consumers[1].unacked == 4 + 7
    rig.dispatcher.acknowledge(99, [(1, 0, 10_000)])
    assert (rig.cursor.backlog(), len(rig.dispatcher.blocks.index)) == (0, 0)
    validate(rig.dispatcher)


def test_cumulative_acknowledgment_is_an_error_and_changes_nothing() -> None:
    rig = Rig([10])
    rig.add(1, credit=100)
    rig.grants()
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        rig.dispatcher.acknowledge(1, [(1, 0, 0)], cumulative=(1, 5, -1))
    assert rig.cursor.backlog() == 10


def test_another_type_is_refused_until_all_have_left() -> None:
    rig = Rig([1])
    rig.add(1, credit=10)
    with pytest.raises(ConsumerBusy, match="Shared"):
        rig.add(2, consumer_type=ConsumerType.Exclusive)
    rig.dispatcher.remove_consumer(1, ConsumerExit.CLOSED)
    rig.add(2, credit=10, consumer_type=ConsumerType.Exclusive)
    assert rig.told() == [(2, 0, ((0, 1),))]


def test_raising_or_removing_a_limit_lets_go_on_what_it_held_back() -> None:
    settings = DispatchSettings(max_unacked_messages_per_consumer=10)
    rig = Rig([1] * 100, settings)
    rig.add(1, credit=1000)
    assert rig.shares() == {1: 10}
    settings.max_unacked_messages_per_consumer = 12
    rig.dispatcher.settings_changed()
    assert rig.shares() == {1: 2}
    settings.max_unacked_messages_per_consumer, settings.max_unacked_messages_per_subscription = 0, 20
    rig.dispatcher.settings_changed()
    assert rig.shares() == {1: 8}
    settings.max_unacked_messages_per_subscription = 22
    rig.dispatcher.settings_changed()
    assert rig.shares() == {1: 2}
    settings.max_unacked_messages_per_subscription = 0
    rig.dispatcher.settings_changed()
    assert rig.shares() == {1: 78}
    assert not rig.dispatcher.is_blocked_on_unacked


def test_lowering_a_limit_takes_nothing_back() -> None:
    settings = DispatchSettings()
    rig = Rig([1] * 30, settings)
    rig.add(1, credit=20)
    assert rig.shares() == {1: 20}
    settings.max_unacked_messages_per_consumer = 10
    rig.dispatcher.settings_changed()
    rig.report(1, 1000)
    assert rig.shares() == {}
    rig.dispatcher.acknowledge(1, [(1, 0, 13)])
    assert rig.shares() == {}, "6 are left, more than half of 10"
    rig.dispatcher.acknowledge(1, [(1, 14, 14)])
    assert rig.shares() == {1: 5}
