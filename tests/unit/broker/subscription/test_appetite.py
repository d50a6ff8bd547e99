"""When a dispatcher stops being told of new entries, and when it is told again."""

from __future__ import annotations

from pulsar_ray.broker.subscription.appetite import SATED_TICKS, Appetite


def test_it_is_lost_after_some_ticks_without_room_and_back_at_once() -> None:
    appetite = Appetite()
    for _ in range(SATED_TICKS):
        assert not appetite.has_come_back(has_room=True)
        appetite.tick(has_room=False)
    assert [appetite.has_come_back(has_room=room) for room in (False, True, True)] == [False, True, False]


def test_who_is_given_something_between_two_ticks_is_only_busy() -> None:
    appetite = Appetite()
    for _ in range(3 * SATED_TICKS):
        appetite.tick(has_room=False)
        appetite.granted()
    assert not appetite.is_sated


def test_room_at_a_tick_starts_over() -> None:
    appetite = Appetite()
    for _ in range(SATED_TICKS):
        appetite.tick(has_room=False)
    appetite.tick(has_room=True)
    assert not appetite.is_sated
