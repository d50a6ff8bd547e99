from __future__ import annotations

import random

import pytest

from pulsar_ray.lane.serving.server_lane import ReceiveBudget


class StubLane:
    def __init__(self) -> None:
        self.reads = True

    def allow_reading(self, allowed: bool) -> None:
        assert allowed != self.reads
        self.reads = allowed


def test_retained_bytes_of_a_lane_stop_that_lane() -> None:
    budget, lane, other = ReceiveBudget(100, 40), StubLane(), StubLane()
    budget.retain(lane, 41)
    budget.retain(other, 40)
    assert [lane.reads, other.reads] == [False, True]
    budget.release(lane, 1)
    assert [lane.reads, other.reads] == [True, True]


def test_retained_bytes_of_all_stop_whoever_adds() -> None:
    budget, lane, other = ReceiveBudget(100, 80), StubLane(), StubLane()
    budget.retain(lane, 60)
    budget.retain(other, 60)
    assert [lane.reads, other.reads] == [True, False]
    budget.retain(lane, 1)
    assert [lane.reads, other.reads] == [False, False]
    budget.release(other, 60)
    assert [lane.reads, other.reads] == [True, True]


def test_large_packets_alone_always_leave_one_lane_reading() -> None:
    budget = ReceiveBudget(100, 100)
    lanes = [StubLane() for _ in range(4)]
    for lane in lanes:
        budget.set_buffered(lane, 40)
    assert [lane.reads for lane in lanes] == [True, True, False, False]
    budget.set_buffered(lanes[1], 60)
    budget.set_buffered(lanes[0], 60)
    assert [lane.reads for lane in lanes] == [True, False, False, False]
    budget.set_buffered(lanes[0], 0)
    assert [lane.reads for lane in lanes] == [True, True, False, False]
    budget.forget(lanes[1])
    assert [lane.reads for lane in lanes] == [True, True, True, True]


def test_small_packets_are_not_held_up_by_large_ones() -> None:
    budget = ReceiveBudget(100, 100)
    large, larger, small = StubLane(), StubLane(), StubLane()
    budget.set_buffered(large, 80)
    budget.set_buffered(larger, 80)
    budget.retain(small, 10)
    assert (large.reads, larger.reads, small.reads) == (True, False, True)


def test_a_lane_that_is_gone_still_counts_until_released() -> None:
    budget, lane, other = ReceiveBudget(100, 100), StubLane(), StubLane()
    budget.retain(lane, 90)
    budget.forget(lane)
    budget.retain(other, 20)
    assert [other.reads] == [False]
    budget.release(lane, 90)
    budget.release(lane, 90)
    assert [other.reads] == [True]
    assert budget.retained_bytes == 20


@pytest.mark.parametrize("seed", range(20))
def test_nobody_waits_for_ever(seed: int) -> None:
    """As long as nothing is retained, some lane reads; once nothing is held at all, all of them do."""
    rng = random.Random(seed)
    budget = ReceiveBudget(1000, 400)
    lanes = [StubLane() for _ in range(5)]
    retained = dict.fromkeys(lanes, 0)
    buffered = dict.fromkeys(lanes, 0)
    for _ in range(300):
        lane = rng.choice(lanes)
        count = rng.randrange(1, 500)
        step = rng.randrange(3)
        if step == 0 and lane.reads:
            retained[lane] += count
            budget.retain(lane, count)
        elif step == 1:
            budget.release(lane, min(count, retained[lane]))
            retained[lane] -= min(count, retained[lane])
        elif lane.reads:
            buffered[lane] = rng.choice([0, count])
            budget.set_buffered(lane, buffered[lane])
        assert budget.retained_bytes == sum(retained.values())
        assert budget.buffered_bytes == sum(buffered.values())
        if not budget.retained_bytes:
            assert any(lane.reads for lane in lanes)
    for lane in lanes:
        budget.release(lane, retained[lane])
        budget.set_buffered(lane, 0)
    assert all(lane.reads for lane in lanes)
