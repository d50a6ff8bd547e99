"""When a dispatcher stops being told of new entries, and when it is told again."""

from __future__ import annotations

from pulsar_ray.broker.subscription.subscription_turn import SATISFIED_TICKS, DemandTracker


def test_it_is_lost_after_some_ticks_without_room_and_back_at_once() -> None:
    demand = DemandTracker()
    for _ in range(SATISFIED_TICKS):
        assert not demand.has_returned(has_room=True)
        demand.tick(has_room=False)
    assert [demand.has_returned(has_room=room) for room in (False, True, True)] == [False, True, False]


def test_who_is_given_something_between_two_ticks_is_only_busy() -> None:
    demand = DemandTracker()
    for _ in range(3 * SATISFIED_TICKS):
        demand.tick(has_room=False)
        demand.granted()
    assert not demand.is_satisfied


def test_room_at_a_tick_starts_over() -> None:
    demand = DemandTracker()
    for _ in range(SATISFIED_TICKS):
        demand.tick(has_room=False)
    demand.tick(has_room=True)
    assert not demand.is_satisfied
