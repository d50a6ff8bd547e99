from __future__ import annotations

import math
import random
from typing import Any

import pytest

from pulsar_ray.client.acks.nack_tracker import TICK_MS, Nack, NackTracker, joined_by_block
from pulsar_ray.client.options.policies import MultiplierRedeliveryBackoff


def test_not_before_the_delay_and_not_a_tick_after_it() -> None:
    nacks = NackTracker(1000)
    nacks.add(3, 5, 0, now_ms=50)
    assert nacks.next_deadline_ms() == 1100
    assert nacks.due(1049) == []
    assert nacks.due(1100) == [(3, 5, (), 0)]
    assert nacks.next_deadline_ms() is None
    assert len(nacks) == 0


def test_never_early_at_most_one_tick_late_for_random_times() -> None:
    for seed in range(20):
        print("seed", seed)
        choose = random.Random(seed)
        delay_ms = choose.randrange(0, 5000)
        nacks = NackTracker(delay_ms)
        failed = {entry: choose.randrange(0, 10_000) for entry in range(200)}
        for entry, at_ms in sorted(failed.items(), key=lambda item: item[1]):
            nacks.add(1, entry, 0, at_ms)
        came = {}
        while (deadline := nacks.next_deadline_ms()) is not None:
            came.update({entry: deadline for _, entry, _, _ in nacks.due(deadline)})
        assert came.keys() == failed.keys()
        for entry, at_ms in failed.items():
            assert 0 <= came[entry] - at_ms - delay_ms < TICK_MS


def test_backoff_uses_the_redelivery_count() -> None:
    nacks = NackTracker(60_000, MultiplierRedeliveryBackoff(1000, 60_000, 2))
    for count, expected in enumerate((1000, 2000, 4000)):
        nacks.add(1, 1, count, now_ms=0, delay_ms=nacks.delay_ms(count))
        assert nacks.next_deadline_ms() == expected
        assert nacks.due(expected) == [(1, 1, (), count)]


class _Broken:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def next(self, redelivery_count: int) -> int:
        if self._answer is None:
            raise RuntimeError("no idea")
        delay: int = self._answer
        return delay


@pytest.mark.parametrize("answer", [None, "soon", float("inf")])
def test_a_backoff_that_fails_costs_nobody_the_failure(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    nacks = NackTracker(1000, _Broken(answer))
    nacks.add(1, 1, 0, now_ms=0, delay_ms=nacks.delay_ms(0))
    assert nacks.due(999) == []
    assert nacks.due(1000) == [(1, 1, (), 0)]
    assert "negative_ack_redelivery_backoff" in caplog.text


def test_due_messages_come_in_position_order() -> None:
    nacks = NackTracker(100)
    for ledger_id, entry_id in ((2, 0), (1, 7), (1, 3)):
        nacks.add(ledger_id, entry_id, 0, now_ms=0)
    assert [item[:2] for item in nacks.due(100)] == [(1, 3), (1, 7), (2, 0)]


def test_rows_of_a_batch_that_fail_meanwhile_join_the_first() -> None:
    nacks = NackTracker(1000)
    nacks.add(1, 1, 2, now_ms=0, rows=((3, 4),))
    nacks.add(1, 1, 2, now_ms=500, rows=((1, 2),))
    nacks.add(1, 1, 2, now_ms=500, rows=((3, 4),))
    assert nacks.due(1000) == [(1, 1, ((1, 2), (3, 4)), 2)]
    assert nacks.next_deadline_ms() is None


def test_a_failure_of_a_later_delivery_is_its_own() -> None:
    nacks = NackTracker(1000)
    nacks.add(1, 1, 0, now_ms=0)
    nacks.add(1, 1, 1, now_ms=500)
    assert nacks.due(1000) == [(1, 1, (), 0)]
    assert nacks.due(1500) == [(1, 1, (), 1)]


def test_clear() -> None:
    nacks = NackTracker(1000)
    nacks.add(1, 1, 0, now_ms=0)
    nacks.clear()
    assert nacks.next_deadline_ms() is None
    nacks.add(1, 1, 0, now_ms=100)
    assert nacks.due(1100) == [(1, 1, (), 0)]


@pytest.mark.parametrize("seed", range(20))
def test_joined_failures_are_the_same_entries_with_the_same_counts_and_few(seed: int) -> None:
    choose = random.Random(seed)
    blocks = [range(50), range(50, 51), range(51, 90)]
    several = [block for block in blocks if len(block) > 1]
    nacks: set[Nack] = {
        (choose.choice((1, 2)), choose.randrange(120), (), choose.choice((-1, 0, 3))) for _ in range(150)
    }
    # A batch, whose rows are its own.
    nacks.add((1, 50, ((2, 4),), 0))

    def block_of(_ledger_id: int, entry_id: int) -> range | None:
        return next((block for block in several if entry_id in block), None)

    joined = joined_by_block(sorted(nacks), block_of)
    again: set[Nack] = set()
    for ledger_id, entry_id, rows, count in joined:
        if any(block.start == entry_id for block in several) and rows:
            again |= {(ledger_id, entry_id + row, (), count) for a, b in rows for row in range(a, b)}
        else:
            again.add((ledger_id, entry_id, rows, count))
    assert again == nacks
    of_blocks = [(n, e, count) for n, e, rows, count in joined if rows and count != 0]
    assert len(of_blocks) == len(set(of_blocks)), "one item for each count and block"


def test_messages_are_counted_by_rows_through_joins_takes_and_ends() -> None:
    tracker = NackTracker(1000)
    tracker.add(1, 1, 0, 0)
    tracker.add(1, 1, 0, 0)
    tracker.add(1, 2, 0, 0, ((0, 3),))
    tracker.add(1, 2, 0, 0, ((2, 5),))
    tracker.add(1, 3, -1, 0, ((7, 8),))
    assert tracker.messages == 7
    tracker.take(1, 3, 4)
    assert tracker.messages == 6
    tracker.due(math.inf)
    assert tracker.messages == 0
    tracker.add(1, 4, 0, 0)
    tracker.clear()
    assert tracker.messages == 0
