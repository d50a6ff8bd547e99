"""The parts of `Admin.topics` over a broker that answers as the test says, with no Admin around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import pytest

from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.admin.topic_growth import TopicGrowth
from pulsar_ray.admin.topic_inspection import TopicInspection
from pulsar_ray.errors import Moved, ServiceUnitNotReady, SubscriptionNotFound, Timeout, WrongNode
from pulsar_ray.transport.cluster import Cluster, PartitionRoute, SubscriptionRequest

TOPIC = "persistent://public/default/t"
AWAY = PartitionRoute(f"{TOPIC}-partition-1", 1, "b", away="it lies on a node that is away")
SERVED = PartitionRoute(f"{TOPIC}-partition-0", 0, "a")
STATS = {
    "pid": 1,
    "subscriptions": [
        {"name": "s", "durable": True, "isServed": False, "subscriptionProperties": {"k": "v"}},
        {"name": "mine", "durable": False, "isServed": False, "subscriptionProperties": {}},
    ],
    "hasReaders": False,
}


class StubBroker:
    """An Admin that gives `answers` in turn, raises those that are errors, and notes what was `asked`."""

    operation_timeout_s = 5.0

    def __init__(self, routes: list[PartitionRoute], *answers: Any) -> None:
        self._routes = routes
        self._answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []
        self.cluster = cast("Cluster", self)

    def partitions(self, _topic: str, timeout_s: float) -> list[PartitionRoute]:
        assert timeout_s > 0
        return self._routes

    def resolve(self, _topic: str, *, create: bool, timeout_s: float) -> list[PartitionRoute]:
        assert not create
        assert timeout_s > 0
        return self._routes

    def call(self, address: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        assert timeout_s > 0
        self.asked.append((address, method, *arguments))
        return self._answer()

    def stats(self, address: str, timeout_s: float) -> Any:
        assert timeout_s > 0
        self.asked.append((address, "stats"))
        return self._answer()

    def dispatcher(self, request: SubscriptionRequest, _timeout_s: float) -> str:
        return f"{request.topic} -> {request.subscription}"

    def dispatcher_gone(self, address: str, *, was_deleted: bool = False) -> None:
        self.asked.append(("gone", address))

    def ask(self, method: str, *arguments: Any, was_done: Callable[..., bool] | None = None) -> Any:
        del was_done
        self.asked.append((method, *arguments))
        return self._answer()

    def _answer(self) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_calls_that_need_all_partitions_refuse_when_one_is_away() -> None:
    calls = TopicCalls(StubBroker([SERVED, AWAY]))
    assert calls.routes_there("t") == [SERVED]
    with pytest.raises(WrongNode, match="it lies on a node that is away"):
        calls.routes("t")
    with pytest.raises(WrongNode, match="1 more partitions"):
        TopicCalls(StubBroker([AWAY, AWAY])).routes_there("t")


def test_a_partition_that_restarts_is_asked_again() -> None:
    broker = StubBroker([SERVED], Moved("a"), ServiceUnitNotReady("starting"), 7)
    assert TopicCalls(broker).ask_partition(SERVED, "last_message", of="x") == 7
    assert broker.asked == [("a", "call", "last_message", {"of": "x"})] * 3


def test_a_partition_that_moved_away_is_not_waited_for() -> None:
    broker = StubBroker([AWAY], Moved("b"))
    with pytest.raises(WrongNode):
        TopicCalls(broker).ask_partition(AWAY, "last_message")


def test_a_dispatcher_of_no_subscription_is_ended() -> None:
    broker = StubBroker([SERVED], SubscriptionNotFound("s"))
    with pytest.raises(SubscriptionNotFound):
        TopicCalls(broker).ask_dispatcher(SERVED, "s", "peek")
    name = f"{SERVED.topic} -> s"
    assert broker.asked == [(name, "call", "peek", {}), ("gone", name)]


def test_a_partition_that_stands_still_is_not_waited_for() -> None:
    broker = StubBroker([SERVED], Timeout("late"), False, Timeout("late"), True)
    route = dataclasses.replace(SERVED, host="here")
    answer = TopicCalls(broker).partition_stats(route, 5.0)
    assert answer == {"refused": "its process stands still and does not answer on here"}
    assert broker.asked == [("a", "stats"), ("is_silent", "a")] * 2


def test_counters_of_a_partition_that_cannot_serve_are_refused() -> None:
    calls = TopicCalls(StubBroker([SERVED], {}, {"refused": "the disk is gone"}))
    with pytest.raises(ServiceUnitNotReady, match="the disk is gone"):
        calls.serving_stats(SERVED)


def test_a_dispatcher_that_does_not_run_has_no_counters() -> None:
    calls = TopicCalls(StubBroker([SERVED], Moved("nobody"), {"subscriptions": {"s": {"type": "Shared"}}}))
    assert calls.running_stats(SERVED.topic, "s", durable=True) is None
    assert calls.running_stats(SERVED.topic, "s", durable=True) == {"s": {"type": "Shared"}}


def test_new_partitions_get_the_durable_subscriptions_before_anybody_can_publish() -> None:
    added = ["persistent://public/default/t-partition-1", 1, "b"]
    registered = (
        "b",
        "call",
        "register_subscription",
        {
            "name": "s",
            "durable": True,
            "initial": "earliest",
            "properties": {"k": "v"},
            "create": True,
        },
    )
    broker = StubBroker([SERVED], [added], STATS, None, None, STATS, None)
    TopicGrowth(TopicCalls(broker)).grow("t", 2)
    assert broker.asked == [
        ("prepare_partitions", TOPIC, 2),
        ("a", "stats"),
        registered,
        ("add_partitions", TOPIC, 2),
        ("a", "stats"),
        registered,
    ]


def test_subscriptions_are_listed_without_starting_anything() -> None:
    served = {**STATS, "hasReaders": True}
    broker = StubBroker([SERVED, AWAY], served, {"subscriptions": {"reader": {}}})
    assert TopicInspection(TopicCalls(broker)).subscriptions("t") == ["mine", "reader", "s"]
    assert broker.asked == [("a", "stats"), (f"{SERVED.topic} => readers", "stats")]
