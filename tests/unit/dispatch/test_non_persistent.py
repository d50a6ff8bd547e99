"""Non-persistent dispatch: what finds permits goes out, everything else is dropped, and nothing is kept."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.non_persistent import NonPersistentDispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import ConsumerBusy
from pulsar_ray.model.enums import ConsumerType

LEDGER = 7
TYPES = (ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover)


class Passing:
    """A subscription that is sent blocks: positive sizes are rows of their own, negative ones batches."""

    def __init__(self, consumer_type: ConsumerType = ConsumerType.Shared) -> None:
        self.full: set[int] = set()
        self.dispatcher = NonPersistentDispatcher(
            DispatchSettings(max_unacked_messages_per_consumer=10, max_unacked_messages_per_subscription=10),
            topic="non-persistent://public/default/t",
            now_ms=0,
            can_take=lambda incarnation: incarnation not in self.full,
        )
        self._type = consumer_type
        self._next = 0

    def add(self, incarnation: int, credit: int) -> None:
        spec = ConsumerSpec(incarnation, f"c{incarnation}", self._type)
        self.dispatcher.attach_consumer(spec)
        self.dispatcher.set_credit(incarnation, credit, 0, 0)

    def push(self, *sizes: int) -> list[tuple[int, int, int]]:
        """(consumer, index of the block among these, messages) of what is granted."""
        blocks: list[BlockRef] = []
        for size in sizes:
            entries = max(size, 1)
            blocks.append(BlockRef(LEDGER, 0, 0, 100, self._next, entries, abs(size), entries > 1))
            self._next += entries
        granted = [
            (grant.incarnation, blocks.index(grant.block), sum(end - start for start, end in grant.rows))
            for grant in self.dispatcher.publish(ReadBlocks(blocks), 0)
        ]
        assert not self.dispatcher.blocks.index
        assert self.dispatcher.blocks.waiting_messages == self.dispatcher.blocks.unacked_messages == 0
        assert all(consumer.unacked == 0 for consumer in self.dispatcher.consumers.values())
        return granted

    @property
    def dropped(self) -> int:
        return self.dispatcher.drops.messages


@pytest.mark.parametrize("consumer_type", TYPES)
def test_what_finds_no_permits_is_dropped_and_does_not_come_with_later_ones(
    consumer_type: ConsumerType,
) -> None:
    passing = Passing(consumer_type)
    passing.add(1, credit=5)
    assert sum(messages for _, _, messages in passing.push(*[1] * 20)) == 5
    assert passing.dropped == 15
    passing.dispatcher.set_credit(1, 10, 5, 5)
    assert passing.push() == []
    assert passing.push(1) == [(1, 0, 1)]


@pytest.mark.parametrize("consumer_type", TYPES)
def test_without_a_consumer_everything_is_dropped(consumer_type: ConsumerType) -> None:
    passing = Passing(consumer_type)
    assert passing.push(1, 300, -4) == []
    assert passing.dropped == 305
    passing.add(1, credit=1000)
    passing.dispatcher.remove_consumer(1)
    assert passing.push(2) == []
    assert passing.dropped == 307


def test_a_block_is_cut_where_permits_end_however_large_the_queue() -> None:
    passing = Passing()
    passing.add(1, credit=1000)
    assert passing.push(400, 400, 400) == [(1, 0, 400), (1, 1, 400), (1, 2, 200)]
    assert passing.dropped == 200


def test_a_batch_goes_whole_for_one_permit() -> None:
    passing = Passing()
    passing.add(1, credit=1)
    assert passing.push(-8, -8) == [(1, 0, 8)]
    assert passing.dropped == 8


def test_a_consumer_whose_connection_is_full_loses_what_others_get() -> None:
    passing = Passing()
    passing.add(1, credit=100)
    passing.add(2, credit=100)
    passing.full.add(1)
    assert passing.push(*[1] * 60) == [(2, index, 1) for index in range(60)]
    passing.full.add(2)
    assert passing.push(1) == []
    assert passing.dropped == 1


def test_shared_consumers_take_turns() -> None:
    passing = Passing()
    passing.add(1, credit=1000)
    passing.add(2, credit=1000)
    shares = dict.fromkeys((1, 2), 0)
    for incarnation, _, messages in passing.push(*[1] * 100):
        shares[incarnation] += messages
    assert shares == {1: 50, 2: 50}


def test_unacknowledged_messages_stop_nothing() -> None:
    passing = Passing()
    passing.add(1, credit=1000)
    assert sum(messages for _, _, messages in passing.push(*[1] * 100)) == 100
    assert passing.dropped == 0


def test_a_second_exclusive_consumer_is_refused() -> None:
    passing = Passing(ConsumerType.Exclusive)
    passing.add(1, credit=1)
    with pytest.raises(ConsumerBusy):
        passing.add(2, credit=1)


def test_a_rate_that_changes_holds_for_what_is_published_next() -> None:
    passing = Passing()
    passing.add(1, credit=1000)
    dispatcher = passing.dispatcher
    dispatcher.settings.dispatch_rate_messages = 3
    dispatcher.settings_changed()
    assert len(passing.push(*[1] * 10)) == 3
    assert passing.dropped == 7
    dispatcher.settings.dispatch_rate_messages = 0
    dispatcher.settings_changed()
    assert len(passing.push(*[1] * 10)) == 10


def test_what_was_on_its_way_when_the_connection_broke_is_lost_and_costs_no_permits() -> None:
    passing = Passing(ConsumerType.Exclusive)
    passing.add(1, credit=10)
    passing.push(1, 1, 1)
    spec = ConsumerSpec(1, "c1", ConsumerType.Exclusive)
    assert passing.dispatcher.attach_consumer(spec, received=1)
    assert passing.push() == []
    assert passing.dispatcher.consumers[1].permits == 9


def test_every_message_is_granted_once_or_counted_as_dropped() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for consumer_type in TYPES:
        passing = Passing(consumer_type)
        pushed = granted = 0
        credit = dict.fromkeys((1,) if consumer_type is ConsumerType.Exclusive else (1, 2, 3), 0)
        for incarnation in credit:
            passing.add(incarnation, 0)
        for _ in range(300):
            incarnation = rng.choice(list(credit))
            credit[incarnation] += rng.choice((0, 1, 40, 500))
            passing.dispatcher.set_credit(incarnation, credit[incarnation], 0, 0)
            passing.full = {one for one in credit if rng.random() < 0.2}
            sizes = [rng.choice((1, 1, 30, 300, -3, -70)) for _ in range(rng.randrange(5))]
            pushed += sum(map(abs, sizes))
            granted += sum(messages for _, _, messages in passing.push(*sizes))
        assert pushed == granted + passing.dropped


def test_a_failover_hands_over_what_is_published_next_and_nothing_else() -> None:
    passing = Passing(ConsumerType.Failover)
    passing.add(1, credit=100)
    passing.add(2, credit=100)
    assert passing.push(1, 1) == [(1, 0, 1), (1, 1, 1)]
    passing.dispatcher.remove_consumer(1)
    passing.dispatcher.elect()
    assert passing.push(1) == [(2, 0, 1)]
