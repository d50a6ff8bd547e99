from __future__ import annotations

import pytest

from pulsar_ray.broker.catalog import parked_consumers
from pulsar_ray.broker.catalog.parked_consumers import ParkedConsumers


def test_a_dispatcher_that_starts_is_told_once_who_has_left() -> None:
    consumers = ParkedConsumers()
    for incarnation in (1, 2, 2):
        consumers.left("a", incarnation, calls_election=False)
    consumers.left("b", 3, calls_election=False)
    assert consumers.take_left("a") == (1, 2)
    assert consumers.take_left("a") == ()
    assert consumers.take_left("b") == (3,)


def test_consumers_are_those_of_the_call_in_which_their_process_died() -> None:
    consumers = ParkedConsumers()
    consumers.waits("me", 1, {"a": [(1, True)]})
    consumers.waits("me", 2, {"a": [(1, True), (2, False)], "b": []})
    consumers.waits("other", 1, {"a": [(3, False)]})
    assert consumers.died("me", 1) == [], "it has called again since"
    assert consumers.died("me", 2) == [("a", 1, True), ("a", 2, False)]
    assert consumers.died("me", 2) == []
    consumers.waits_no_more("other", 1)
    assert consumers.died("other", 1) == [], "it had its answer"


def test_who_waits_behind_an_active_consumer_that_left_lacks_one() -> None:
    consumers = ParkedConsumers()
    consumers.waits("me", 1, {"a": [(1, True), (2, False)]})
    consumers.left("a", 2, calls_election=False)
    assert consumers.to_elect(["a"]) == []
    consumers.left("a", 1, calls_election=True)
    assert consumers.to_elect(["a"]) == [], "nobody is left"
    consumers.waits("other", 1, {"a": [(3, False)]})
    assert consumers.to_elect(["a", "b"]) == ["a"]
    consumers.waits_no_more("other", 1)
    assert consumers.to_elect(["a"]) == []
    consumers.waits("other", 1, {"a": [(3, False)]})
    consumers.take_left("a")
    assert consumers.to_elect(["a"]) == [], "its dispatcher has started"


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_consumers, "MOST_LEFT", 3)
    consumers = ParkedConsumers()
    for incarnation in range(2):
        consumers.left("old", incarnation, calls_election=False)
        consumers.left("new", 10 + incarnation, calls_election=False)
    assert consumers.take_left("old") == ()
    assert consumers.take_left("new") == (10, 11)
