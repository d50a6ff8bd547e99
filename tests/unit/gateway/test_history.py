"""Plots begin with what topics did over the last minutes, and memory has an end."""

from __future__ import annotations

from typing import Any

from pulsar_ray.gateway.page.history import EVERY_S, KEPT_S, POINTS, History, pause_s


def row(name: str, rate: float = 1.0, backlog: int | None = 2) -> dict[str, Any]:
    return {"name": name, "msgRateIn": rate, "msgRateOut": rate / 2, "msgBacklog": backlog}


def test_a_topic_has_the_points_of_five_minutes() -> None:
    history = History()
    for look in range(2 * POINTS):
        history.note(look * EVERY_S, [row("a", look), row("b", backlog=None)])
    now_s = (2 * POINTS - 1) * EVERY_S
    points = history.of("a", now_s)
    assert points["at"] == [look * EVERY_S for look in range(POINTS, 2 * POINTS)]
    assert points["in"] == list(range(POINTS, 2 * POINTS))
    assert points["out"][-1] == points["in"][-1] / 2
    assert set(history.of("b", now_s)["backlog"]) == {0}
    assert history.of("c", now_s) == {"at": [], "in": [], "out": [], "backlog": []}
    assert history.of("a", now_s + KEPT_S) == history.of("c", now_s)


def test_topics_that_were_not_seen_for_longest_make_room() -> None:
    history = History(most_topics=3)
    history.note(0, [row("a"), row("b"), row("c")])
    history.note(5, [row("a"), row("d")])
    assert [bool(history.of(name, 5)["at"]) for name in "abcd"] == [True, False, True, True]
    history.note(KEPT_S + 1, [row("e")])
    assert [bool(history.of(name, 6)["at"]) for name in "acd"] == [True, False, True]


def test_looking_takes_a_hundredth_of_the_time() -> None:
    assert pause_s(0.001) == EVERY_S
    assert pause_s(1) == 100
