"""What was handed over comes due once its timeout is over, as Pulsar's documentation has it in its table."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.client.acks.ack_timeouts import AckTimeouts, EntryRun, TimedRows
from pulsar_ray.client.acks.nack_tracker import NackTracker
from pulsar_ray.client.options.policies import MultiplierRedeliveryBackoff
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.row_ranges import RowFailures
from pulsar_ray.testing.manual_clock import ManualClock

TICK_MS = 1000
BACKOFF = MultiplierRedeliveryBackoff(1000, 60_000, 2)
DELAYS_S = (1, 2, 4, 8, 16, 32, 60, 60)
"""Before each redelivery, the first one first: both tables of Pulsar's documentation."""


def block(
    entry: int, messages: int = 1, *, count: int = 0, is_batch: bool = False, failures: RowFailures = ()
) -> ReceivedBlock:
    made = ReceivedBlock.outgoing("t", b"")
    made.ledger_id, made.first_entry_id, made.message_count = 3, entry, messages
    made.redelivery_count, made.is_batch, made.row_failures = count, is_batch, failures
    return made


def tick(timeouts: AckTimeouts, now_ms: int) -> None:
    timeouts.tick(now_ms, timeouts.delays_ms(timeouts.fresh_failures))


@pytest.mark.parametrize(("redelivery", "delay_s"), list(enumerate(DELAYS_S, start=1)))
def test_negative_acknowledgments_wait_as_in_the_table(redelivery: int, delay_s: int) -> None:
    clock = ManualClock(now_ms=70_000)
    nacks = NackTracker(60_000, BACKOFF)
    nacks.add(3, 5, redelivery - 1, clock.monotonic_ms(), delay_ms=nacks.delay_ms(redelivery - 1))
    clock.advance(delay_s * 1000 - 1)
    assert nacks.due(clock.monotonic_ms()) == []
    clock.advance(1)
    assert nacks.due(clock.monotonic_ms()) == [(3, 5, (), redelivery - 1)]


@pytest.mark.parametrize(("redelivery", "delay_s"), list(enumerate(DELAYS_S, start=1)))
def test_ack_timeouts_wait_as_in_the_table(redelivery: int, delay_s: int) -> None:
    clock = ManualClock(now_ms=70_000)
    timeouts = AckTimeouts(10_000, BACKOFF)
    timeouts.add(block(5, count=redelivery - 1), range(1))
    tick(timeouts, clock.monotonic_ms())
    clock.advance(10_000 + delay_s * 1000 - 1)
    assert timeouts.due(clock.monotonic_ms()) == []
    clock.advance(1)
    assert timeouts.due(clock.monotonic_ms()) == [EntryRun(3, 5, 5, redelivery - 1)]


def test_never_early_and_at_most_a_tick_late_for_random_times() -> None:
    for seed in range(20):
        print("seed", seed)
        choose = random.Random(seed)
        timeout_ms = choose.randrange(1000, 5000)
        timeouts = AckTimeouts(timeout_ms)
        handed = {entry: choose.randrange(0, 10_000) for entry in range(0, 400, 2)}
        came: dict[int, int] = {}
        for now in range(20_000):
            for entry, at_ms in handed.items():
                if at_ms == now:
                    timeouts.add(block(entry), range(1))
            if now % TICK_MS == 0:
                tick(timeouts, now)
            if timeouts.next_deadline_ms() == now:
                for run in timeouts.due(now):
                    assert isinstance(run, EntryRun)
                    came.update(dict.fromkeys(range(run.first, run.last + 1), now))
        assert came.keys() == handed.keys()
        for entry, at_ms in handed.items():
            assert 0 <= came[entry] - at_ms - timeout_ms < TICK_MS


def test_neighbours_are_one_range_and_rows_of_a_block_one_set() -> None:
    timeouts = AckTimeouts(1000)
    for entry in range(100_000):
        timeouts.add(block(entry), range(1))
    for row in range(0, 50, 2):
        timeouts.add(block(200_000, 50), [row])
    tick(timeouts, 0)
    run, rows = timeouts.due(1000)
    assert run == EntryRun(3, 0, 99_999, 0)
    assert isinstance(rows, TimedRows)
    assert rows.rows.bit_count() == 25


def test_messages_of_a_batch_wait_by_their_own_failures() -> None:
    timeouts = AckTimeouts(1000, BACKOFF)
    timeouts.add(block(7, 4, count=3, is_batch=True, failures=((1, 2, 3),)), range(4))
    tick(timeouts, 0)
    (first,) = timeouts.due(2000)
    assert isinstance(first, TimedRows)
    assert first.rows == 0b1101
    assert timeouts.next_deadline_ms() == 9000


def test_what_was_taken_back_does_not_come_due() -> None:
    timeouts = AckTimeouts(1000)
    for entry in range(5):
        timeouts.add(block(entry), range(1))
    timeouts.add(block(10, 3), range(3))
    tick(timeouts, 0)
    timeouts.take_back(block(2), range(1))
    timeouts.take_back(block(10, 3), [0, 2])
    assert timeouts.due(1000) == [
        EntryRun(3, 0, 1, 0),
        EntryRun(3, 3, 4, 0),
        TimedRows(3, 10, 0, 0b010, 3, is_batch=False),
    ]


class _Broken:
    def next(self, redelivery_count: int) -> int:
        raise RuntimeError


def test_a_backoff_that_raises_costs_nobody_the_timeout() -> None:
    timeouts = AckTimeouts(1000, _Broken())
    timeouts.add(block(1), range(1))
    tick(timeouts, 0)
    assert timeouts.due(1000) == [EntryRun(3, 1, 1, 0)]


def test_what_is_handed_over_while_the_backoff_is_asked_waits_for_the_next_tick() -> None:
    timeouts = AckTimeouts(1000, BACKOFF)
    timeouts.add(block(1), range(1))
    delays_ms = timeouts.delays_ms(timeouts.fresh_failures)
    timeouts.add(block(5, count=3), range(1))
    timeouts.tick(0, delays_ms)
    assert timeouts.fresh_failures == [3]
    tick(timeouts, 1000)
    assert timeouts.fresh_failures == []
    assert timeouts.due(1 << 40) == [EntryRun(3, 1, 1, 0), EntryRun(3, 5, 5, 3)]
