from __future__ import annotations

import pytest

from pulsar_ray.broker.catalog import parked_consumers
from pulsar_ray.broker.catalog.parked_consumers import ParkedConsumers
from pulsar_ray.transport.actor_names import dispatcher_name

TOPIC = "persistent://public/default/t"


def test_a_dispatcher_that_starts_is_told_once_who_has_left() -> None:
    consumers = ParkedConsumers()
    for incarnation in (1, 2, 2):
        consumers.left("a", incarnation, calls_election=False)
    consumers.left("b", 3, calls_election=False)
    assert consumers.take_left("a") == (1, 2)
    assert consumers.take_left("a") == ()
    assert consumers.take_left("b") == (3,)


def test_consumers_of_a_process_that_died_are_those_that_it_named_last() -> None:
    consumers = ParkedConsumers()
    consumers.waits("me", {"a": [(1, True)], "c": [(4, True)]})
    consumers.waits("me", {"a": [(1, True), (2, False)], "b": []})
    consumers.waits("other", {"a": [(3, False)]})
    assert consumers.died("me") == [("a", 1, True), ("a", 2, False)]
    assert consumers.died("me") == []
    consumers.waits_no_more("other")
    assert consumers.died("other") == [("a", 3, False)], "nobody knows whether it had its answer"
    assert consumers.died("unknown") == []


def test_who_waits_behind_an_active_consumer_that_left_lacks_one() -> None:
    consumers = ParkedConsumers()
    consumers.waits("me", {"a": [(1, True), (2, False)]})
    consumers.left("a", 2, calls_election=False)
    assert consumers.to_elect(["a"]) == []
    consumers.left("a", 1, calls_election=True)
    assert consumers.to_elect(["a"]) == [], "nobody is left"
    consumers.waits("other", {"a": [(3, False)]})
    assert consumers.to_elect(["a", "b"]) == ["a"]
    consumers.waits_no_more("other")
    assert consumers.to_elect(["a"]) == []
    consumers.waits("other", {"a": [(3, False)]})
    consumers.take_left("a")
    assert consumers.to_elect(["a"]) == [], "its dispatcher has started"


def test_a_consumer_that_has_left_uses_its_topic_no_longer() -> None:
    parked = ParkedConsumers()
    address, readers = dispatcher_name(TOPIC, "s", durable=True), dispatcher_name(TOPIC, "", durable=False)
    parked.waits("client", {address: [(1, True), (2, True)]})
    assert parked.at(TOPIC) == ["a consumer of 's'"] * 2
    parked.left(address, 1, calls_election=True)
    assert parked.at(TOPIC) == ["a consumer of 's'"]
    parked.left(address, 2, calls_election=True)
    assert parked.at(TOPIC) == []
    parked.waits("other", {readers: []})
    assert parked.at(TOPIC) == ["a reader"]


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_consumers, "MOST_LEFT", 3)
    consumers = ParkedConsumers()
    for incarnation in range(2):
        consumers.left("old", incarnation, calls_election=False)
        consumers.left("new", 10 + incarnation, calls_election=False)
    assert consumers.take_left("old") == ()
    assert consumers.take_left("new") == (10, 11)
