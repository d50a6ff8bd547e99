"""A store that is away for long is taken over once, again if that fails, and never if it is back."""

from __future__ import annotations

import pytest

from pulsar_ray.broker.catalog.node_losses import FIRST_RETRY_S, NodeLosses, Room, shared_out

TICK_S = 5.0


class Watch:
    """Looks every five seconds, as the controller does."""

    def __init__(self, after_s: float = 60.0) -> None:
        self.losses = NodeLosses(after_s)
        self.now = 1_000.0
        self.losses.look(self.now, ())

    def look(self, *away: str, times: int = 1, every_s: float = TICK_S) -> list[str]:
        due: list[str] = []
        for _ in range(times):
            self.now += every_s
            due = self.losses.look(self.now, away)
        return due


def test_a_store_is_taken_over_when_it_has_been_away_for_the_time_that_is_set() -> None:
    watch = Watch(60)
    assert watch.look("a", times=12) == []
    assert watch.losses.describe("a") == "is taken over by other stores in 5 s, unless it comes back"
    assert watch.look("a") == ["a"]
    watch.losses.begun("a")
    assert watch.look("a") == []
    assert "being taken over" in watch.losses.describe("a")
    watch.losses.done("a", 2)
    assert watch.look("a", times=100) == []
    assert "2 partitions were never shipped" in watch.losses.describe("a")


def test_one_that_is_back_in_time_begins_anew() -> None:
    watch = Watch(60)
    watch.look("a", times=12)
    watch.look()
    assert watch.losses.describe("a") == ""
    assert watch.look("a", times=12) == []
    assert watch.look("a") == ["a"]


def test_time_in_which_nobody_looked_does_not_count() -> None:
    watch = Watch(60)
    watch.look("a")
    assert watch.look("a", every_s=10_000.0) == []
    assert "in 45 s" in watch.losses.describe("a")


def test_a_controller_that_has_just_begun_takes_nobody_for_lost() -> None:
    assert NodeLosses(60).look(5_000.0, ["a", "b"]) == []


@pytest.mark.parametrize("after_s", [0, 0.0])
def test_nobody_is_taken_over_without_a_time(after_s: float) -> None:
    watch = Watch(after_s)
    assert watch.look("a", times=1_000) == []
    assert watch.losses.describe("a") == ""


def test_what_fails_is_tried_again_later_each_time() -> None:
    watch = Watch(60)
    assert watch.look("a", times=13) == ["a"]
    waits = []
    for _ in range(8):
        watch.losses.begun("a")
        watch.losses.failed("a", "no other store ships")
        assert "no other store ships; tried again in" in watch.losses.describe("a")
        began = watch.now
        while not watch.look("a"):
            pass
        waits.append(watch.now - began)
    assert waits == [FIRST_RETRY_S, 10, 20, 40, 80, 160, 300, 300]


def test_one_that_comes_back_while_it_is_taken_over_is_known_until_that_has_ended() -> None:
    watch = Watch(60)
    watch.look("a", times=13)
    watch.losses.begun("a")
    assert watch.look() == []
    watch.losses.done("a", 0)
    watch.look()
    assert watch.losses.describe("a") == ""


def test_partitions_go_where_there_are_fewest_and_room() -> None:
    rooms = {
        "full": Room(0, 10, has_room=False),
        "few": Room(1, 100, has_room=True),
        "many": Room(3, 200, has_room=True),
    }
    shares = shared_out(["1", "2", "3", "4"], rooms)
    assert shares == {"few": ["1", "2", "4"], "many": ["3"]}
    assert shared_out(["1"], {"full": rooms["full"]}) == {}
