"""Which partitions move by themselves, where to, and when that is tried again."""

from __future__ import annotations

from pulsar_ray.broker.catalog.move_plans import FIRST_RETRY_S, LONGEST_RETRY_S, Retries, balanced
from pulsar_ray.broker.catalog.node_losses import Room


def rooms(**has_room: bool) -> dict[str, Room]:
    return {name: Room(0, 100, has_room=each) for name, each in has_room.items()}


def counts(partitions: dict[str, list[int]], moves: dict[int, str]) -> dict[str, int]:
    at = {number: store for store, numbers in partitions.items() for number in numbers} | moves
    return {store: list(at.values()).count(store) for store in partitions}


def test_a_new_store_gets_its_share_and_nothing_else_moves() -> None:
    partitions = {"a": list(range(10)), "b": list(range(10, 20)), "c": []}
    moves = balanced(partitions, rooms(a=True, b=True, c=True))
    assert sorted(counts(partitions, moves).values()) == [6, 7, 7]
    assert set(moves.values()) == {"c"}
    assert len(moves) == 6


def test_balanced_stores_stay_as_they_are() -> None:
    assert balanced({"a": [1, 2], "b": [3], "c": [4]}, rooms(a=True, b=True, c=True)) == {}
    assert balanced({}, {}) == {}
    assert balanced({"a": [1, 2, 3]}, rooms(a=True)) == {}


def test_nothing_goes_where_there_is_no_room_or_that_is_drained() -> None:
    partitions: dict[str, list[int]] = {"a": [1, 2, 3, 4], "b": [], "c": []}
    assert set(balanced(partitions, rooms(a=True, b=False, c=True)).values()) == {"c"}
    assert balanced(partitions, rooms(a=True)) == {}


def test_what_failed_is_tried_again_later_and_later() -> None:
    retries, now = Retries(), 0.0
    assert retries.due([1, 2], now) == [1, 2]
    for turn in range(10):
        retries.failed(1, now, "no room")
        wait_s = min(FIRST_RETRY_S * 2**turn, LONGEST_RETRY_S)
        assert retries.due([1, 2], now + wait_s - 0.1) == [2]
        assert retries.due([1, 2], now + wait_s) == [1, 2]
        now += wait_s
    assert retries.reason([1, 2]) == "no room"
    retries.forget(1)
    assert retries.reason([1, 2]) == ""
